"""What JSON and UTF-8 can carry of a program's texts and numbers.

plain_text("\\ud800")  →  "\\\\ud800"
plain_number(math.inf)  →  "inf"
"""

from __future__ import annotations

import math

from firstfault.record import schema


def plain_text(text: str) -> str:
    """``text`` as an exact ``str`` without lone surrogates, which UTF-8, and so every record, cannot carry."""
    if type(text) is not str:
        text = str.__str__(text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def plain_number(value: float) -> schema.Statistic:
    """A number, or the name of what JSON has no number for."""
    return value if math.isfinite(value) else str(value)
