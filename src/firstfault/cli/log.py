"""``firstfault log PATH``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import READABLE
from firstfault.errors import ExitCode, UsageError
from firstfault.settings import check_pattern

if TYPE_CHECKING:
    from firstfault.read.events import Event, Source

POLL_SECONDS = 0.2
OP_HELP = "Only calls whose whole name matches this shell-style pattern, as in '*.rmsnorm'."
NUMBERS_HELP = "Say in each block the number of its call, as trace, replay and report use it: call=37."
LAST_HELP = "Only the last so many calls of each process; not with --follow."
FOLLOW_HELP = "Go on as records are written, until all of a recording has ended or Ctrl-C; not with --last."


def command(
    path: Annotated[Path, READABLE],
    op: Annotated[str, typer.Option(help=OP_HELP)] = "*",
    numbers: Annotated[bool, typer.Option("--numbers", help=NUMBERS_HELP)] = False,
    last: Annotated[int | None, typer.Option(min=1, help=LAST_HELP)] = None,
    follow: Annotated[bool, typer.Option("--follow", help=FOLLOW_HELP)] = False,
) -> None:
    """Print the calls in SGLang's kernel API text format.

    Exits with 0 when everything was read, 3 when some of it could not be, 2 when nothing could or no call matches.
    """
    from firstfault.present import calls_text
    from firstfault.read.session import open_source

    if follow and last is not None:
        raise UsageError("--follow and --last do not go together; leave one out")
    check_pattern(f"--op {op!r}", op)
    source = open_source(path)
    printer = calls_text.Printer(op, numbers=numbers)
    for text in calls_text.texts(_followed(source) if follow else _read(source), printer, last):
        sys.stdout.write(text)
    for problem in source.problems.lines():
        tell(problem)
    if not printer.matched and op != "*":
        raise UsageError(_no_match(op, printer.others))
    raise typer.Exit(ExitCode.INCOMPLETE if source.problems.counts else ExitCode.OK)


def _no_match(op: str, others: list[str]) -> str:
    recorded = f"recorded are {', '.join(others)}" if others else "no call was recorded"
    return f"no call matches --op {op!r}, which is held against whole names; {recorded}"


def _read(source: Source) -> Iterator[Event]:
    """What is there."""
    from firstfault.cli.progress import advancing

    with advancing(source.path) as advance:
        yield from source.events(advance)


def _followed(source: Source) -> Iterator[Event]:
    """What is there, then what is added, to the end of the recording.

    Raises:
        UsageError: it is no recording.
    """
    from firstfault.read.formats.recording import Recording
    from firstfault.read.living import Ends

    if not isinstance(source, Recording):
        raise UsageError(f"--follow needs a recording; {source.path} is a {source.kind}: use tail -f on a text log")
    ends = Ends(source)
    over = False
    for events in source.follow():
        yield from events
        sys.stdout.flush()
        if over:
            return
        ends.take(events)
        over = ends.all_over()  # what was written before that is read on the next turn
        time.sleep(0 if over else POLL_SECONDS)
