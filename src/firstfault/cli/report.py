"""``firstfault report PATH...``."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.paths import READABLE
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.diagnose.report import Report


class Format(str, Enum):
    """How the report is written."""

    TEXT = "text"
    MD = "md"
    JSON = "json"


def command(
    paths: Annotated[list[Path], READABLE],
    output: Annotated[Format | None, typer.Option("--format", help="How it is written; text if left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    last: Annotated[int, typer.Option(min=0, max=10, help="How many of the last calls to list.")] = 5,
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
    show(found, Format.JSON if json else output or Format.TEXT)
    raise typer.Exit(ExitCode.OK if found.complete else ExitCode.INCOMPLETE)


def show(report: Report, output: Format) -> None:
    """Print a report."""
    if output is Format.TEXT:
        from firstfault.present import terminal

        terminal.show(report, sys.stdout)
    elif output is Format.MD:
        from firstfault.present import markdown

        sys.stdout.write(markdown.render(report))
    else:
        from firstfault.present import json

        sys.stdout.write(json.render(report))
