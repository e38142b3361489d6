"""``firstfault sanitize DUMP`` and ``firstfault sanitize -- COMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli import under_tool
from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.cli.processes import PROCESS_HELP
from firstfault.cli.replay import CALL_HELP, DEVICE_HELP, FUNCTION_HELP, IMPORT_HELP, TIMEOUT_HELP
from firstfault.cli.run import DIR_HELP, LEVEL_HELP
from firstfault.errors import ExitCode
from firstfault.tools.compute_sanitizer import Tool

if TYPE_CHECKING:
    from firstfault.diagnose.checked import Checked
    from firstfault.replay.launch import Around
    from firstfault.replay.spec import Spec

TOOL_HELP = "What is looked for: accesses out of bounds, races for shared memory, reads of unset memory, barriers."


def command(
    words: Annotated[list[str], typer.Argument(metavar="DUMP | -- COMMAND...", help=under_tool.WORDS_HELP)],
    tool: Annotated[Tool, typer.Option(help=TOOL_HELP)] = Tool.MEMCHECK,
    call: Annotated[int | None, typer.Option(min=1, help=CALL_HELP)] = None,
    process: Annotated[str | None, typer.Option(help=PROCESS_HELP)] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "",
    function: Annotated[str, typer.Option(metavar="MODULE:NAME", help=FUNCTION_HELP)] = "",
    imports: Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", help=IMPORT_HELP)] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help=TIMEOUT_HELP)] = None,
    level: Annotated[int | None, typer.Option(help=LEVEL_HELP)] = None,
    dir: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=DIR_HELP)] = None,  # noqa: A002
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Run one dumped call, or a command, under compute-sanitizer, and say which argument a fault is of.

    PyTorch's caching allocator is off, and each tensor of a replayed call is an allocation that ends where the tensor
    does: an access to the byte behind it is seen, and a write before it. Exits with 0 when nothing was reported, 1 when
    something was, 125 when it cannot tell or there is no compute-sanitizer.
    """
    path = under_tool.dump_in(words)
    if path is None:
        raise typer.Exit(_command(words, tool, level, dir, json=json))
    from firstfault.read.find_dumps import find
    from firstfault.replay.launch import Around
    from firstfault.replay.spec import Spec

    dumps = find(path, call, call, process)
    spec = Spec([str(dump.folder) for dump in dumps], "", device, 1, function, imports or [])
    checked = _check(spec, tool, Around(seconds=timeout))
    _print(checked, json=json)
    raise typer.Exit(checked.verdict.exit_code)


def _check(spec: Spec, tool: Tool, around: Around) -> Checked:
    """Replay a call under the tool, and join what it says with the call's arguments."""
    from firstfault.diagnose import checked
    from firstfault.diagnose.accesses import Place
    from firstfault.read.formats.error_log import complaints
    from firstfault.read.formats.sanitizer_text import counted
    from firstfault.replay.checked import under_sanitizer
    from firstfault.replay.verdict import Verdict
    from firstfault.tools.compute_sanitizer import FALSE_ALARMS

    run = under_sanitizer(spec, tool, around, os.environ)
    replayed = run.ran.results[0]
    lines = run.log.splitlines()
    told = complaints(lines, tool.value)
    places = [Place(lies.name, lies.begin, lies.end, lies.itemsize, lies.allocation) for lies in run.ran.lies]
    answer = checked.Checked(
        checked.Verdict.CANNOT_TELL,
        tool.value,
        replayed.op,
        replayed.call,
        replayed.dump,
        faults=checked.faults(told, places)
        + [checked.overwritten(guard.name, guard.before) for guard in run.ran.overwritten],
        api=checked.api_errors(told),
        counted=counted(lines),
        replayed=f"{replayed.verdict.value}: {replayed.text}",
        changes=run.changes,
        notes=[*replayed.notes, FALSE_ALARMS[tool]],
    )
    return checked.judge(answer, ran=replayed.verdict is not Verdict.NOT_RUN)


def _print(answer: Checked, *, json: bool) -> None:
    from firstfault.present import checked_text
    from firstfault.present import json as as_json

    sys.stdout.write(as_json.render(answer) if json else checked_text.render(answer))


def _command(words: list[str], tool: Tool, level: int | None, folder: Path | None, *, json: bool) -> ExitCode:
    """Run a command under the tool and record it; the report joins both."""
    from firstfault.diagnose.investigate import report_on
    from firstfault.present import json as as_json
    from firstfault.present import terminal
    from firstfault.read.evidence import gather
    from firstfault.read.formats.sanitizer_text import counted
    from firstfault.tools import compute_sanitizer

    changed = compute_sanitizer.surroundings(os.environ)
    compute_sanitizer.words(tool, Path(), ())  # before anything is made: it may not be there
    done = under_tool.recorded(
        words,
        level,
        folder,
        lambda texts, inner: compute_sanitizer.words(tool, texts / f"{tool.value}-%p.txt", inner),
        changed.variables,
    )
    counts = [counted(text.read_text(errors="replace").splitlines()) for text in done.texts]
    known = [count for count in counts if count is not None]
    report = report_on(gather(done.folder, lambda count: None), last=5)
    report.conditions += [f"compute-sanitizer {tool.value}; {change}" for change in changed.changes]
    sys.stdout.write(as_json.render(report)) if json else terminal.show(report, sys.stdout)
    tell(f"{tool.value} counts {sum(known)} errors in {len(known)} processes; its own words are in {done.folder}/tools")
    if not known:
        return ExitCode.CANNOT_TELL
    return ExitCode.BAD if sum(known) else ExitCode.OK
