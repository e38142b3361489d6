"""Evidence → report: what became of the calls, and of the command that made them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from msgspec import structs

from firstfault.diagnose import commands, report
from firstfault.diagnose.case import Case, build
from firstfault.diagnose.judgement import Ending
from firstfault.read.evidence import Evidence
from firstfault.read.formats.errors_text import DEVICE_ERROR
from firstfault.record.plain import plain_text

FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGQUIT, signal.SIGHUP})
"""Signals that end a process which has not failed by itself."""


def report_on(evidence: Evidence, *, last: int) -> report.Report:
    """The report on what was read; ``last`` is how many of the last calls are listed."""
    case = Case(
        evidence.history,
        source=plain_text(evidence.name),
        kind=evidence.kind,
        last=last,
        ending=_ending(evidence),
        pages=evidence.pages,
        complete_call=evidence.complete,
        complaints=evidence.complaints,
        environment=_variables(evidence.session.get("environment")),
    )
    found = build(case)
    _add_session(found, evidence)
    _say_what_was_run(found)
    found.problems += evidence.problems.lines()
    return found


def _add_session(found: report.Report, evidence: Evidence) -> None:
    """How the command ended, and what it said last."""
    level = evidence.session.get("level")
    found.command = _words(evidence.session.get("command"))
    found.level = level if isinstance(level, int) else None
    found.conditions = list(_conditions(evidence))
    found.targets = _words(evidence.session.get("targets"))
    found.ended = _end_in_words(evidence, running=any(process.running for process in found.processes))
    found.unseen = evidence.unseen
    found.stderr = evidence.stderr.rstrip().splitlines()[-report.STDERR_LINES :]


def _say_what_was_run(found: report.Report) -> None:
    """Put it into the next steps that run it once more."""
    words = found.command
    for process in found.processes:
        told = process.findings
        process.findings = [structs.replace(one, command=commands.of_run(one.command, words)) for one in told]
    if found.diagnosis is not None:
        found.diagnosis.command = commands.of_run(found.diagnosis.command, words)


BLOCKING = (
    "CUDA_LAUNCH_BLOCKING=1: each launch waited for its kernel, so the error surfaces at the call that failed; "
    "what depends on timing may not show up so, and its absence proves nothing"
)


def _conditions(evidence: Evidence) -> Iterator[str]:
    """What was asked for that changes how the program runs."""
    environment = evidence.session.get("environment")
    blocking = environment.get("CUDA_LAUNCH_BLOCKING") if isinstance(environment, dict) else None
    if blocking == "1" or evidence.session.get("blocking") is True:
        yield BLOCKING


def _variables(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _ending(evidence: Evidence) -> Ending:
    status, pid = evidence.session.get("exit_status"), evidence.session.get("pid")
    killed = isinstance(evidence.session.get("signal"), int)
    well = status == 0 and not isinstance(status, bool) and not killed and isinstance(pid, int)
    exited_well = frozenset({pid} if well and isinstance(pid, int) else ())
    failed = not well and DEVICE_ERROR.search(evidence.stderr) is not None
    stopped = evidence.session.get("signal") in FROM_OUTSIDE
    known = isinstance(status, int) or killed
    at = evidence.session.get("ended")
    return Ending(
        known,
        exited_well,
        failed,
        stopped,
        evidence.running,
        failed=known and not well,
        at=at if isinstance(at, int) else 0,
    )


def _end_in_words(evidence: Evidence, *, running: bool) -> str:
    number = evidence.session.get("signal")
    if isinstance(number, int) and number:
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    status = evidence.session.get("exit_status")
    if isinstance(status, int):
        return f"exited with {status}"
    if not evidence.session:
        return ""
    if running:
        return "not yet: it is running"
    if evidence.run_is_gone:
        return "no end recorded: firstfault run was killed with it"
    return "no end recorded: it is running still, or firstfault run was killed with it"
