"""A progress bar over the bytes of an input: on a terminal, for work that takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

WORTH_A_BAR = 64 * 2**20
_STEP = 2**20


@contextmanager
def advancing(*paths: Path) -> Iterator[Callable[[int], None]]:
    """Count the bytes read under ``paths`` on stderr; silently where that is no terminal or the input small."""
    total = sum(map(_bytes_under, paths)) if sys.stderr is not None and sys.stderr.isatty() else 0
    if total < WORTH_A_BAR:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("reading", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        pending = 0

        def advance(count: int) -> None:
            nonlocal pending
            pending += count
            if pending >= _STEP:
                progress.advance(task, pending)
                pending = 0

        yield advance


def _bytes_under(path: Path) -> int:
    """Bytes of a text log, or of a recording's segments; dumps are small to read, whatever they hold."""
    from firstfault.record.layout import SEGMENTS

    try:
        if path.is_file():
            return path.stat().st_size
        return sum(file.stat().st_size for pattern in (SEGMENTS, f"*/{SEGMENTS}") for file in path.glob(pattern))
    except OSError:
        return 0
