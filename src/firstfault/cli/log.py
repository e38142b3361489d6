"""``firstfault log PATH``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.read.formats.recording import Recording

POLL_SECONDS = 0.2


def command(
    path: Annotated[Path, typer.Argument(help="A recording, a kernel API text log, or a dump folder.")],
    op: Annotated[str, typer.Option(help="Only calls whose operator matches this shell-style pattern.")] = "*",
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many calls of each process.")] = None,
    follow: Annotated[bool, typer.Option(help="Go on as records are written, until Ctrl-C.")] = False,
) -> None:
    """Print the calls in SGLang's kernel API text format.

    Exits with 0 when everything was read, 3 when some of it could not be, 2 when nothing could.
    """
    from firstfault.cli.progress import advancing
    from firstfault.present import calls_text
    from firstfault.read.formats.recording import Recording
    from firstfault.read.session import open_source

    if follow and last is not None:
        raise UsageError("--follow and --last do not go together; leave one out")
    source = open_source(path)
    if follow:
        if not isinstance(source, Recording):
            raise UsageError(f"--follow needs a recording; {path} is a {source.kind}: use tail -f on a text log")
        _follow(source, op)
    with advancing(path) as advance:
        for text in calls_text.texts(source.events(advance), op, last):
            sys.stdout.write(text)
    for problem in source.problems.lines():
        _tell(problem)
    raise typer.Exit(ExitCode.INCOMPLETE if source.problems.counts else ExitCode.OK)


def _follow(recording: Recording, op: str) -> None:
    """Print what is there, then what is added."""
    from firstfault.present.calls_text import Printer

    printer = Printer(op)
    for events in recording.follow():
        for event in events:
            sys.stdout.write(printer.block(event))
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)


def _tell(problem: str) -> None:
    from firstfault.record.text_log import one_line

    print(one_line(f"firstfault: {problem}"), file=sys.stderr)
