"""An answer for machines: one JSON object, whose ``version`` says how to read it."""

from __future__ import annotations

import re

import msgspec

from firstfault.diagnose.report import Report
from firstfault.diagnose.trace import Trace

_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n]")


def render(answer: Report | Trace) -> str:
    """The whole answer, indented."""
    return plain(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n"


def plain(text: str) -> str:
    """JSON in which what could steer a terminal is escaped."""
    return _NOT_PLAIN.sub(lambda match: _escaped(match.group()), text)


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code - 0x10000 & 0x3FF):04x}"
