"""What a command tells its user beside its answer: one line each, on stderr."""

from __future__ import annotations

import contextlib
import sys


def tell(message: str) -> None:
    """Print one line, unless nobody reads stderr."""
    from firstfault.record.text_log import one_line

    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(one_line(f"firstfault: {message}"), file=sys.stderr)
