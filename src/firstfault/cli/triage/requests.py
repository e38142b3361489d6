"""``firstfault triage requests FILE… [--export requests.jsonl]``."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.read.requests import Loaded


class State(str, Enum):
    """How a request went."""

    UNFINISHED = "unfinished"
    FAILED = "failed"
    FINISHED = "finished"


FILES_HELP = "SGLang request or crash dumps (.pkl), requests.jsonl, or folders of them."
EXPORT_HELP = "Write the requests, with their prompts, to this file, one a line."
STATE_HELP = "Only requests that went so; more than once for more."
ID_HELP = "Only requests whose id matches this pattern, such as 'chatcmpl-*'; more than once for more."
SLOWEST_HELP = "Only so many, those that took longest."
LAST_HELP = "Only requests under way in the last so many seconds."
SHORTEST_HELP = "Only requests with at least so many tokens in the prompt."
LONGEST_HELP = "Only requests with at most so many tokens in the prompt."


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help=FILES_HELP)],
    export: Annotated[Path | None, typer.Option(help=EXPORT_HELP)] = None,
    state: Annotated[list[State] | None, typer.Option(help=STATE_HELP)] = None,
    name: Annotated[list[str] | None, typer.Option("--id", help=ID_HELP)] = None,
    slowest: Annotated[int | None, typer.Option(min=1, help=SLOWEST_HELP)] = None,
    last: Annotated[float | None, typer.Option(min=0, help=LAST_HELP)] = None,
    min_prompt: Annotated[int | None, typer.Option(min=0, help=SHORTEST_HELP)] = None,
    max_prompt: Annotated[int | None, typer.Option(min=0, help=LONGEST_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines, with each request.")] = False,
) -> None:
    """Say what is in saved requests, and save those that matter in a form that can be replayed and shared.

    Nothing in a dump is executed or imported. Of the server's arguments only what is known to be no secret is shown;
    prompts and outputs only go into what --export writes, which only its owner can read.

    Exits with 0 when everything was read, 3 when some of it could not be, 2 when nothing could or no request is left.
    """
    from firstfault.read.request_filter import Wanted, chosen
    from firstfault.read.requests import load

    loaded = load(files)
    wanted = Wanted(
        states=tuple(one.value for one in state or ()),
        names=tuple(name or ()),
        shortest_prompt=min_prompt,
        longest_prompt=max_prompt,
        slowest=slowest,
        last=last,
    )
    total = len(loaded.requests)
    loaded.requests = chosen(loaded.requests, wanted)
    if total and not loaded.requests:
        raise UsageError(f"none of the {total} requests is one of those that were asked for")
    _show(loaded, json)
    for problem in loaded.problems:
        tell(problem)
    if export is not None:
        _export(export, loaded)
    raise typer.Exit(ExitCode.INCOMPLETE if loaded.problems else ExitCode.OK)


def _show(loaded: Loaded, json: bool) -> None:
    from firstfault.present import json as as_json
    from firstfault.present import request_sections, terminal
    from firstfault.read.request_summary import summarize

    summary = summarize(loaded)
    if json:
        sys.stdout.write(as_json.render(summary))
    else:
        terminal.show_sections(request_sections.conclusion(summary), request_sections.sections(summary), sys.stdout)


def _export(path: Path, loaded: Loaded) -> None:
    from firstfault.record.requests import save

    save(path, loaded.opening, loaded.requests)
    count = len(loaded.requests)
    kind = "request is" if count == 1 else "requests are"
    tell(f"{count} {kind} in {path}; replay: firstfault triage replay {path} --base-url URL")
