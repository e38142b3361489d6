"""``firstfault live PID|DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    target: Annotated[str, typer.Argument(metavar="PID|DIR", help="A recorded process, or its recording.")],
) -> None:
    """Show where host and device of a running or hung process are, stream by stream, without touching it."""
    from firstfault.diagnose import live
    from firstfault.record.text_log import one_line

    folder = live.recording_of(int(target)) if target.isdigit() and not Path(target).exists() else Path(target)
    found = live.standings(folder)
    several = len({process for process, _ in found}) > 1
    for process, sentence in found:
        print(one_line(f"{process}  {sentence}" if several else sentence))
