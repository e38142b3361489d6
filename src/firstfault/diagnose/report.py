"""A source's calls → one report: what was in flight, what was raised, what is suspicious in it.

Conclusion: sglang.custom_op.moe_align (call 37) was in flight when process vm-4242 died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum

import msgspec

from firstfault.diagnose import rules
from firstfault.diagnose.finding import Finding, ranked
from firstfault.read.calls import Call, History, Process, State
from firstfault.record import schema

REPORT_VERSION = 1
STDERR_LINES = 15


class Verdict(str, Enum):
    """What a process's record says of its end."""

    IN_FLIGHT = "call in flight"
    EXCEPTION = "exception in a call"
    BETWEEN_CALLS = "died between calls"
    ENDED = "ended by itself"
    NO_CALLS = "no calls recorded"
    CANNOT_TELL = "could not tell"


class Argument(msgspec.Struct, omit_defaults=True):
    """One input or output, in short and in full."""

    name: str
    value: schema.Value


class CallReport(msgspec.Struct, omit_defaults=True):
    """One call of the report; ``inputs`` are left out for those that are only listed."""

    n: int
    op: str
    state: str
    target: str = ""
    thread: int = 0
    site: str = ""
    line: int = 0
    time: int = 0
    duration: int = 0
    parents: list[str] = []
    inputs: list[Argument] = []
    output: Argument | None = None
    mutated: list[str] = []
    exception: str = ""
    message: str = ""
    dump: str = ""
    dump_skipped: str = ""


class ProcessReport(msgspec.Struct, omit_defaults=True):
    """One process: the call that matters, those in flight, and the last before it."""

    name: str
    verdict: Verdict
    conclusion: str
    calls: int
    pid: int = 0
    host: str = ""
    rank: str = ""
    level: int = 0
    suspect: CallReport | None = None
    in_flight: list[CallReport] = []
    last: list[CallReport] = []
    findings: list[Finding] = []
    notes: list[str] = []


class Report(msgspec.Struct, omit_defaults=True):
    """The whole answer.

    Attributes:
        version: of this structure, which only grows within a version.
        conclusion: one line that says it.
        source: the path, and what it is.
        command: what was run, and how it ended, where a session says so.
        stderr: the end of what it wrote there.
        processes: those that matter most first.
        problems: what could not be read; the answer is incomplete where there are any.
    """

    version: int
    conclusion: str
    source: str
    kind: str
    command: list[str] = []
    ended: str = ""
    stderr: list[str] = []
    processes: list[ProcessReport] = []
    problems: list[str] = []

    @property
    def complete(self) -> bool:
        """Whether everything was read."""
        return not self.problems


def build(
    history: History,
    *,
    source: str,
    kind: str,
    last: int,
    problems: list[str],
    complete_suspect: Callable[[Call], None],
) -> Report:
    """The report on what ``history`` has taken in.

    Args:
        history: the calls.
        source, kind: where they come from.
        last: how many of the last calls are listed.
        problems: what could not be read.
        complete_suspect: fetches what only the suspect's dump knows (the statistics of its inputs).
    """
    processes = [_process(process, history, last, complete_suspect) for process in history.processes.values()]
    processes.sort(key=_weight)
    conclusion = processes[0].conclusion if processes else "No calls were recorded."
    return Report(REPORT_VERSION, conclusion, source, kind, processes=processes, problems=problems)


_ORDER = [
    Verdict.IN_FLIGHT,
    Verdict.EXCEPTION,
    Verdict.CANNOT_TELL,
    Verdict.BETWEEN_CALLS,
    Verdict.ENDED,
    Verdict.NO_CALLS,
]


def _weight(process: ProcessReport) -> tuple[int, int]:
    """Those in flight first, and of them the one that had begun its call last."""
    return _ORDER.index(process.verdict), -(process.suspect.time if process.suspect else 0)


def _process(process: Process, history: History, last: int, complete_suspect: Callable[[Call], None]) -> ProcessReport:
    verdict, suspect = _judge(process)
    findings: list[Finding] = []
    if suspect is not None:
        complete_suspect(suspect)
        findings = ranked(rules.check_all(rules.Suspect(suspect, history.layouts)))
    header = process.header
    return ProcessReport(
        name=process.name,
        verdict=verdict,
        conclusion=_conclusion(process, verdict, suspect),
        calls=process.calls,
        pid=header.pid if header else 0,
        host=header.host if header else "",
        rank=header.rank if header else "",
        level=header.level if header else 0,
        suspect=_call(suspect, process, full=True) if suspect else None,
        in_flight=[_call(call, process, full=False) for call in process.in_flight() if call is not suspect],
        last=[_call(call, process, full=False) for call in _last(process, suspect, last)],
        findings=findings,
        notes=list(_notes(process)),
    )


def _judge(process: Process) -> tuple[Verdict, Call | None]:
    """What became of a process, and the call to look at."""
    in_flight = process.in_flight()
    if process.calls == 0:
        return Verdict.NO_CALLS, None
    if in_flight and not process.ends_recorded:
        return Verdict.CANNOT_TELL, in_flight[0]
    if in_flight and process.end is None:
        return Verdict.IN_FLIGHT, in_flight[0]
    if process.raised is not None and _is_last(process.raised, process):
        return Verdict.EXCEPTION, process.raised
    if process.end is not None or process.header is None:
        return Verdict.ENDED, None
    return Verdict.BETWEEN_CALLS, None


def _is_last(raised: Call, process: Process) -> bool:
    """Whether the thread did nothing after the exception but let it pass through enclosing calls."""
    ended: deque[Call] = process.last.get(raised.record.tid, deque())
    after = list(ended)[list(ended).index(raised) + 1 :] if raised in ended else []
    return raised in ended and all(call.state is State.RAISED for call in after)


def _conclusion(process: Process, verdict: Verdict, suspect: Call | None) -> str:
    where = f"process {process.name}" if process.name != "main" else "the process"
    end = f"when {where} ended" if process.header is not None else f"where the record of {where} ends"
    call = f"{suspect.op} (call {suspect.n})" if suspect is not None else ""
    raised = f"{suspect.exception} in {where}: {_first_line(suspect.message)}" if suspect is not None else ""
    return {
        Verdict.IN_FLIGHT: f"{call} was in flight {end}: its inputs are recorded, its end is not.",
        Verdict.EXCEPTION: f"{call} raised {raised}",
        Verdict.CANNOT_TELL: f"{call} is the last call that {where} logged; below level 3 a log does not say "
        "whether it came back.",
        Verdict.BETWEEN_CALLS: f"All {process.calls} calls of {where} came back; it died after the last one, "
        "in code that is not recorded.",
        Verdict.NO_CALLS: f"No calls were recorded in {where}.",
        Verdict.ENDED: f"All {process.calls} calls of {where} came back.",
    }[verdict]


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def _last(process: Process, suspect: Call | None, count: int) -> list[Call]:
    """The last calls that ended in the suspect's thread, or in all where there is none."""
    if suspect is not None:
        ended = list(process.last.get(suspect.record.tid, ()))
    else:
        ended = sorted((call for calls in process.last.values() for call in calls), key=lambda call: call.n)
    ended = [call for call in ended if call is not suspect]
    return ended[-count:] if count else []


def _notes(process: Process) -> Iterator[str]:
    for note in process.notes.values():
        yield note.message if note.count == 1 else f"{note.message} ({note.count} times)"
    for reason, count in process.dumps_skipped.items():
        yield f"tensor dump skipped: {reason}" + (f" ({count} times)" if count > 1 else "")


def _call(call: Call, process: Process, *, full: bool) -> CallReport:
    record = call.record
    stack = process.open.get(record.tid, [])
    parents = [f"{outer.op} (call {outer.n})" for outer in stack[: stack.index(call)]] if call in stack else []
    report = CallReport(
        n=call.n,
        op=call.op,
        state=call.state.value,
        target=record.target,
        thread=record.tid,
        site=record.site,
        line=call.line,
        time=record.t,
        duration=call.duration,
        parents=parents if full else [],
        mutated=call.mutated,
        exception=call.exception,
        message=call.message,
        dump=call.dump,
        dump_skipped=call.dump_skipped,
    )
    if full:
        report.inputs = [Argument(name, value) for name, value in call.inputs()]
        report.output = Argument("return", call.out) if call.out_described else None
    return report
