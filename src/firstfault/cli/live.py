"""``firstfault live PID|DIR``."""

from __future__ import annotations

from typing import Annotated

import typer

from firstfault.cli.paths import given, readable


def command(
    target: Annotated[str, typer.Argument(metavar="PID|DIR", help="A recorded process, or its recording.")],
) -> None:
    """Show how far GPU and host of a running or hung process are, stream by stream, without touching it.

    Only a process that uses a GPU has such positions; where the host of any other is, the report on its recording
    says.
    """
    from firstfault.diagnose.live import standings
    from firstfault.read import live
    from firstfault.record.text_log import one_line

    is_pid = target.isdecimal() and not given(target).exists()
    found = standings(live.marked(live.recording_of(int(target)) if is_pid else readable(target)))
    several = len({process for process, _ in found}) > 1
    for process, sentence in found:
        print(one_line(f"{process}  {sentence}" if several else sentence))
