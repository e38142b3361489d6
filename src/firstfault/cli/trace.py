"""``firstfault trace PATH --call N``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import READABLE
from firstfault.cli.processes import PROCESS_HELP, of_process
from firstfault.errors import ExitCode

if TYPE_CHECKING:
    from firstfault.diagnose.trace import Trace
    from firstfault.read.events import Source

CALL_HELP = "Number of the call to begin at, as report and log --numbers show it."
ARG_HELP = "Only this argument: 0, arg[0], or its name."
ALL_HELP = (
    "Show every step: calls that only pass a value on (views, copies) as steps of their own, and of what made a value "
    "that is not finite its finite arguments too."
)
DOWN_HELP = "Follow what the call wrote to the calls that it went into, too."


def command(
    path: Annotated[Path, READABLE],
    call: Annotated[int, typer.Option(min=1, help=CALL_HELP)],
    arg: Annotated[str | None, typer.Option(help=ARG_HELP)] = None,
    down: Annotated[bool, typer.Option("--down", help=DOWN_HELP)] = False,
    every: Annotated[bool, typer.Option("--all", help=ALL_HELP)] = False,
    process: Annotated[str | None, typer.Option(help=PROCESS_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines, with all that is known of each tensor.")] = False,
) -> None:
    """Show which earlier calls wrote what a call was given, and what those were given, step by step.

    Exits with 0 when everything was read, 3 when some of it could not be, 2 when there is no such call.
    """
    from firstfault.present import json as as_json
    from firstfault.present import trace_text
    from firstfault.read.session import open_source

    found = _traced(open_source(path), process, call, arg, down, every)
    sys.stdout.write(as_json.render(found) if json else trace_text.render(found))
    for problem in found.problems:
        tell(problem)
    raise typer.Exit(ExitCode.INCOMPLETE if found.problems else ExitCode.OK)


def _traced(source: Source, process: str | None, call: int, arg: str | None, down: bool, whole: bool) -> Trace:
    """From the index that ``query`` has made, if it is of the input as it is now; else from the records."""
    from firstfault.cli.progress import advancing
    from firstfault.diagnose.trace import trace, trace_indexed
    from firstfault.read import index, remote
    from firstfault.read.indexed import Indexed
    from firstfault.record.plain import plain_text

    name = plain_text(remote.named(source.path))
    if (place := index.find(source)) is not None:
        indexed = Indexed.of(place, process)
        found = trace_indexed(indexed, call, argument=arg, down=down, source=name, whole=whole)
        found.problems = indexed.problems
    else:
        with advancing(source.path) as advance:
            events = of_process(source, process, advance)
            found = trace(events, call, argument=arg, down=down, source=name, whole=whole)
        found.problems = source.problems.lines()
    return found
