"""``firstfault report PATH...``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from firstfault.cli.paths import READABLE, given
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.diagnose.report import Report
    from firstfault.read.events import Advance, Event
    from firstfault.read.evidence import Evidence

FORMAT_HELP = "How it is written, text if left out; perfetto is a trace for ui.perfetto.dev."
FILE_HELP = "The file that it is written to; stdout if left out."


class Format(str, Enum):
    """How the report is written."""

    TEXT = "text"
    MD = "md"
    JSON = "json"
    HTML = "html"
    PERFETTO = "perfetto"


def command(
    paths: Annotated[list[Path], READABLE],
    output: Annotated[Format | None, typer.Option("--format", help=FORMAT_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    last: Annotated[int, typer.Option(min=0, max=10, help="How many of the last calls to list.")] = 5,
    file: Annotated[Path | None, typer.Option("-o", parser=given, metavar="FILE", help=FILE_HELP)] = None,
) -> None:
    """Say which call failed, on what, and which call made that; from one input, or all that there is on a failure.

    Exits with 0 when everything was read, 3 when some of it could not be, 2 when nothing could.
    """
    from firstfault.cli.progress import advancing
    from firstfault.diagnose.investigate import report_on
    from firstfault.read.evidence import gather

    if json and output not in (None, Format.JSON):
        raise UsageError(f"--json and --format {output.value} do not go together; leave one out")
    with advancing(*paths) as advance:
        evidence = gather(paths[0], advance, paths[1:])
    found = report_on(evidence, last=last)
    form = Format.JSON if json else output or Format.TEXT
    if file is None:
        _write(found, evidence, paths, form, sys.stdout)
    else:
        try:
            with file.open("w", encoding="utf-8", errors="backslashreplace") as opened:
                _write(found, evidence, paths, form, opened)
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}; choose another file with -o") from error
    raise typer.Exit(ExitCode.OK if found.complete else ExitCode.INCOMPLETE)


def _write(report: Report, evidence: Evidence, paths: list[Path], form: Format, file: IO[str]) -> None:
    """Write a report in one of the formats."""
    if form is Format.TEXT:
        from firstfault.present import terminal

        terminal.show(report, file)
    elif form is Format.MD:
        from firstfault.present import markdown

        file.write(markdown.render(report))
    elif form is Format.JSON:
        from firstfault.present import json

        file.write(json.render(report))
    elif form is Format.HTML:
        from firstfault.present import html

        file.write(html.render(report, evidence.history))
    else:
        _write_trace(report, evidence, paths, file)


def _write_trace(report: Report, evidence: Evidence, paths: list[Path], file: IO[str]) -> None:
    """Read the inputs once more, for all calls of them and not only the last."""
    from firstfault.cli.progress import advancing
    from firstfault.present import perfetto

    with advancing(*paths) as advance:
        file.writelines(perfetto.lines(report, evidence.history, _events(paths, advance)))


def _events(paths: list[Path], advance: Advance) -> Iterator[Event]:
    """The records of all inputs, their processes named as in the report."""
    from firstfault.read.session import open_source

    seen: set[str] = set()
    for path in paths:
        source, taken = open_source(path), set(seen)
        for event in source.events(advance):
            if event.process in taken:
                event = event._replace(process=f"{source.path.name}/{event.process}")
            seen.add(event.process)
            yield event
