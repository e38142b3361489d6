"""What a command tells its user beside its answer: one line each, on stderr."""

from __future__ import annotations

from firstfault import errors


def tell(message: str) -> None:
    """Print one line, whatever names it holds."""
    from firstfault.record.text_log import one_line

    errors.tell(one_line(message))
