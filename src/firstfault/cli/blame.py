"""``firstfault blame RECORDING``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import READABLE
from firstfault.cli.processes import PROCESS_HELP
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.diagnose.report import ProcessReport, Report
    from firstfault.read.calls import Call
    from firstfault.replay.verdict import Replayed

CALL_HELP = "Number of the call that failed; the one that report names if left out."
ARG_HELP = "The argument that it failed on, as arg[0] or its name; the one that report suspects if left out."
DEVICE_HELP = "Where tensors of replayed calls go that were on a device."
IMPORT_HELP = "A module to import before a replay; may be given more than once."
TIMEOUT_HELP = "Seconds after which a replay counts as hanging."


def command(
    path: Annotated[Path, READABLE],
    call: Annotated[int | None, typer.Option(min=1, help=CALL_HELP)] = None,
    arg: Annotated[str | None, typer.Option(help=ARG_HELP)] = None,
    process: Annotated[str | None, typer.Option(help=PROCESS_HELP)] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "",
    imports: Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", help=IMPORT_HELP)] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help=TIMEOUT_HELP)] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Name the call upstream that made what the culprit failed on: the first with good inputs and a bad output.

    Each producer of the suspicious argument is replayed against its reference, where it was dumped (level 10) and has
    one, and its values are held against what they must be. It runs the code that the dumps name.
    Exits with 0 when one is blamed, 3 when that cannot be told.
    """
    from firstfault.cli.progress import advancing
    from firstfault.diagnose.blame import blame
    from firstfault.diagnose.investigate import report_on
    from firstfault.present import blame_text
    from firstfault.present import json as as_json
    from firstfault.read.evidence import gather

    with advancing(path) as advance:
        evidence = gather(path, advance)
    report = report_on(evidence, last=0)
    of = _process(report, process)
    calls = evidence.history.processes[of.name]
    culprit = calls.find(call or _culprit(of))
    if culprit is None:
        raise UsageError(f"call {call} is not among those that are kept of {path}")
    label = _argument(arg, culprit, of)
    judge = _judge(path, device, imports or [], timeout)
    found = blame(calls, culprit, label, judge, evidence.complete)
    found.problems = evidence.problems.lines()
    if found.blamed:
        by_reference = any(one.call == found.blamed and one.by == "reference" for one in found.producers)
        found.next = _next(path, calls.find(found.blamed), report.command, by_reference=by_reference)
    sys.stdout.write(as_json.render(found) if json else blame_text.render(found))
    for problem in found.problems:
        tell(problem)
    raise typer.Exit(ExitCode.OK if found.blamed else ExitCode.INCOMPLETE)


def _next(path: Path, blamed: Call | None, run: list[str], *, by_reference: bool) -> str:
    """The command that looks closer at the call that is blamed; only one that was dumped can be made again."""
    from firstfault.diagnose import commands

    if blamed is None or not blamed.dump:
        return commands.of_run(commands.record(level=10), run)
    return f"firstfault replay {path} --call {blamed.n}" + " --against reference" * by_reference


def _process(report: Report, name: str | None) -> ProcessReport:
    """The process that is meant: the one that matters most if it is not said.

    Raises:
        UsageError: there is none.
    """
    found = next((one for one in report.processes if name in (None, one.name)), None)
    if found is None:
        names = ", ".join(one.name for one in report.processes) or "none"
        raise UsageError(f"{report.source} holds no process {name!r}; it has {names}")
    return found


def _culprit(process: ProcessReport) -> int:
    """The call that failed.

    Raises:
        UsageError: none did.
    """
    if process.diagnosis is not None and process.diagnosis.culprit:
        return process.diagnosis.culprit
    if process.suspect is None:
        raise UsageError("no call is known to have failed; say which with --call, and on what with --arg")
    return process.suspect.n


def _argument(given: str | None, culprit: Call, process: ProcessReport) -> str:
    """The argument to begin at.

    Raises:
        UsageError: there is none of that name, or none is suspicious.
    """
    labels = [label for label, _ in culprit.given]
    if given is not None:
        label = f"arg[{given}]" if given.isdigit() else given
        if label in labels:
            return label
        raise UsageError(f"call {culprit.n} was given no tensor as {given}; it has {', '.join(labels) or 'none'}")
    suspicious = [label for one in process.findings if one.call == culprit.n for label in one.arguments]
    found = next((label for label in suspicious if label in labels), None)
    if found is None:
        raise UsageError(f"nothing that call {culprit.n} was given is known to be wrong; say which with --arg")
    return found


def _judge(path: Path, device: str, imports: list[str], timeout: float) -> Callable[[Call], Replayed | None]:
    """What replays a call against its reference."""
    from firstfault.read.find_dumps import located
    from firstfault.replay.launch import Around, replay
    from firstfault.replay.spec import Spec

    def judge(call: Call) -> Replayed | None:
        folder = located(Path(call.dump), path, call.process) if call.dump else None
        if folder is None:
            return None
        spec = Spec([str(folder)], "", device, imports=imports, against="reference")
        return replay(spec, Around(seconds=timeout)).results[0]

    return judge
