"""A source's calls → one report: what was in flight, what was raised, what is suspicious in it.

Conclusion: sglang.custom_op.moe_align (call 37) was in flight when process vm-4242 died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

import msgspec

from firstfault.diagnose import chain, complaints, device, diagnosis, rules, witnessed
from firstfault.diagnose.device import Position
from firstfault.diagnose.finding import Confidence, Finding, Kind, ranked
from firstfault.diagnose.finding import Verdict as Found
from firstfault.diagnose.rules.ff501_index_out_of_range import breaks_contract
from firstfault.read.calls import Call, History, Process
from firstfault.read.formats.complaint import Complaint
from firstfault.read.formats.errors_text import DEVICE_ERROR
from firstfault.read.formats.kernel_api_log import FLASHINFER, NAMELESS
from firstfault.record import progress, schema
from firstfault.settings import Level

REPORT_VERSION = 1
STDERR_LINES = 15
MOST_TARGETS = 50
DUMP = "dump"
"""The kind of a source that is one dumped call: what failed with it can only be of that."""
LOST = "lost"
"""Code of the note on records that could not be written."""


class Verdict(str, Enum):
    """What a process's record says of its end."""

    CULPRIT = "call that the device did not complete"
    IN_FLIGHT = "call in flight"
    EXCEPTION = "exception in a call"
    BETWEEN_CALLS = "died between calls"
    RUNNING = "running between calls"
    ENDED = "ended by itself"
    NO_CALLS = "no calls recorded"
    CANNOT_TELL = "could not tell"


class Argument(msgspec.Struct, omit_defaults=True):
    """One input or output, in short and in full."""

    name: str
    value: schema.Value


class CallReport(msgspec.Struct, omit_defaults=True):
    """One call of the report; ``inputs`` are left out for those that are only listed.

    ``described`` tells that the arguments were recorded, be they none. ``graph`` is the CUDA graph that it was captured
    into or replays, and ``replay`` at which of its replays a captured call had these values.
    """

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
    described: bool = False
    inputs: list[Argument] = []
    output: Argument | None = None
    mutated: list[str] = []
    exception: str = ""
    message: str = ""
    dump: str = ""
    dump_skipped: str = ""
    graph: int = 0
    replay: int = 0


class TargetReport(msgspec.Struct, omit_defaults=True):
    """What was recorded of one library or mechanism.

    Attributes:
        library: the distribution, and its version where that is known.
        boundaries: how many functions were boundaries, as far as the process came to say so.
        used: how many of them were called.
        calls: how many of their calls were recorded.
        gap: why it is not attached, or not to everything.
    """

    name: str
    library: str = ""
    boundaries: int = 0
    used: int = 0
    calls: int = 0
    gap: str = ""


class ProcessReport(msgspec.Struct, omit_defaults=True):
    """One process: the call that matters, those in flight, and the last before it.

    Attributes:
        raised: how many of its calls ended in an exception.
        title: what it has named itself.
        running: whether it is still there, as far as can be told.
        suspect: the call to look at.
        only: the call of a process that made one and ended by itself.
        last: by number; those of other threads where the suspect's has no others.
        device: where each stream stood, in words, and in ``streams`` in numbers.
        chain: of a failure on the device, from the kernel back to what made it fail.
    """

    name: str
    verdict: Verdict
    conclusion: str
    calls: int
    raised: int = 0
    running: bool = False
    pid: int = 0
    host: str = ""
    rank: str = ""
    title: str = ""
    level: int = 0
    suspect: CallReport | None = None
    only: CallReport | None = None
    in_flight: list[CallReport] = []
    last: list[CallReport] = []
    findings: list[Finding] = []
    device: list[str] = []
    streams: list[Position] = []
    targets: list[TargetReport] = []
    notes: list[str] = []
    diagnosis: diagnosis.Diagnosis | None = None
    chain: chain.Chain | None = None


class Report(msgspec.Struct, omit_defaults=True):
    """The whole answer.

    Attributes:
        version: of this structure, which only grows within a version.
        conclusion: one line that says it.
        source: the path, and what it is.
        command: what was run, and how it ended, where a session says so.
        conditions: how it was run, where that changes what is seen.
        level, targets: what was asked for, where a session says so.
        stderr: the end of what it wrote there.
        unseen: Python processes of it that nothing was recorded in, and why.
        processes: those that matter most first.
        diagnosis: what the first of them comes to; None where nothing is wrong.
        complaints: what the program and tools said of the failure.
        problems: what could not be read; the answer is incomplete where there are any.
    """

    version: int
    conclusion: str
    source: str
    kind: str
    command: list[str] = []
    level: int | None = None
    targets: list[str] = []
    ended: str = ""
    conditions: list[str] = []
    stderr: list[str] = []
    unseen: list[str] = []
    processes: list[ProcessReport] = []
    problems: list[str] = []
    diagnosis: diagnosis.Diagnosis | None = None
    complaints: list[Complaint] = []

    @property
    def complete(self) -> bool:
        """Whether everything was read."""
        return not self.problems


@dataclass(frozen=True)
class Ending:
    """How the watched command ended, as far as its session says.

    Attributes:
        known: whether its end was recorded; it may run still otherwise.
        exited_well: the process ids known to have exited with 0.
        stopped: whether it was ended by a signal from outside.
        device_failed: whether it ended with an error of the device in its stderr.
        running: by process, whether it is still there; None where that cannot be told.
        failed: whether the command is known not to have ended well.
    """

    known: bool = False
    exited_well: frozenset[int] = frozenset()
    device_failed: bool = False
    stopped: bool = False
    running: Mapping[str, bool | None] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True)
class Case:
    """All that a report is made of.

    Attributes:
        history: the calls.
        source, kind: where they come from.
        last: how many of the last calls are listed.
        ending: how the command ended.
        pages: marker pages by process, of those that left one.
        complete_call: fetches what only the dump of a call knows (the statistics of its tensors).
        complaints: what the program and tools said.
        environment: the variables that the session names.
    """

    history: History
    source: str
    kind: str
    last: int
    ending: Ending
    pages: Mapping[str, progress.Page]
    complete_call: Callable[[Call], None]
    complaints: Sequence[Complaint] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def build(case: Case) -> Report:
    """The report on a case."""
    every = case.history.processes.values()
    processes = _ordered([_process(process, case) for process in every])
    lost = [f"{process.name}: {_lost(process)}" for process in every if LOST in process.notes]
    found = Report(
        REPORT_VERSION,
        "No calls were recorded.",
        case.source,
        case.kind,
        processes=processes,
        problems=lost,
        complaints=list(case.complaints),
    )
    if processes:
        found.conclusion, found.diagnosis = processes[0].conclusion, processes[0].diagnosis or _said(processes[0], case)
        if found.diagnosis is not None and _goes_first(found.diagnosis):
            found.conclusion = f"{found.conclusion.removesuffix('.')}; {found.diagnosis.text}."
    elif case.complaints:
        found.conclusion = complaints.conclusion(case.complaints)
        found.diagnosis = diagnosis.of_complaints(case.complaints)
    return found


def _said(process: ProcessReport, case: Case) -> diagnosis.Diagnosis | None:
    """What the program said of its failure, where it was in no call: of which class it is, and nobody to blame."""
    told = diagnosis.of_complaints(case.complaints) if case.ending.failed and process.suspect is None else None
    return told if told is not None and told.kind is not Kind.UNKNOWN else None


def _goes_first(of: diagnosis.Diagnosis) -> bool:
    """Whether a diagnosis is part of the conclusion: where it is sure, or keeps from blaming the call in its front."""
    return bool(of.text) and (of.confidence is Confidence.HIGH or not of.culprit)


_ORDER = [
    Verdict.CULPRIT,
    Verdict.IN_FLIGHT,
    Verdict.EXCEPTION,
    Verdict.CANNOT_TELL,
    Verdict.BETWEEN_CALLS,
    Verdict.RUNNING,
    Verdict.ENDED,
    Verdict.NO_CALLS,
]


def _ordered(processes: list[ProcessReport]) -> list[ProcessReport]:
    """Those that matter most first: a rank that only waited for one that failed comes after that one."""
    own = any(_failed_by_itself(process) for process in processes)
    waits = Counter(process.suspect.op for process in processes if process.suspect is not None and _waited(process))

    def key(process: ProcessReport) -> tuple[bool, int, tuple[int, int, int]]:
        """Of those that wait for each other, where most of them are comes first."""
        alike = waits[process.suspect.op] if process.suspect is not None and _waited(process) else 0
        return own and _waited(process), -alike, _weight(process)

    return sorted(processes, key=key)


def _failed_by_itself(process: ProcessReport) -> bool:
    """Whether a process ended in a call, for a reason that is not another rank's."""
    failed = process.verdict in (Verdict.CULPRIT, Verdict.IN_FLIGHT, Verdict.EXCEPTION)
    return failed and process.diagnosis is not None and process.diagnosis.kind is not Kind.HANG


def _waited(process: ProcessReport) -> bool:
    return process.diagnosis is not None and process.diagnosis.kind is Kind.HANG


def _weight(process: ProcessReport) -> tuple[int, int, int]:
    """Those in flight first, and of them the one that had begun its call last; a text log's clock has seconds only."""
    suspect = process.suspect
    return _ORDER.index(process.verdict), -(suspect.time if suspect else 0), -(suspect.n if suspect else 0)


def _process(process: Process, case: Case) -> ProcessReport:
    verdict, suspect = _judge(process, case.ending)
    conclusion = _conclusion(process, verdict, suspect, case.ending)
    page = case.pages.get(process.name)
    streams = device.positions(page, process.marks) if page is not None else []
    one = _only(process, case.history) if case.kind == DUMP else None
    well = _exited_well(process, case.ending)
    seen = witnessed.find(case.complaints, process, only=one, exited_well=well)
    told = seen is not None and witnessed.overrules(seen, streams, process)
    if told and seen is not None:
        verdict, suspect, conclusion = Verdict.CULPRIT, seen.call, seen.text
    elif streams and _device_failed(process, suspect, case.ending):
        verdict, suspect, conclusion = _blame(process, streams, verdict, suspect, conclusion)
    only = _only(process, case.history) if verdict is Verdict.ENDED else None
    for call in filter(None, (suspect, only)):
        case.complete_call(call)
    findings = _findings(process, verdict, suspect, case)
    header = process.header
    return ProcessReport(
        name=process.name,
        verdict=verdict,
        conclusion=conclusion,
        calls=process.calls,
        raised=process.raises,
        running=bool(case.ending.running.get(process.name)),
        pid=header.pid if header else 0,
        host=header.host if header else "",
        rank=header.rank if header else "",
        title=header.title if header else "",
        level=header.level if header else 0,
        suspect=_call(suspect, process, full=True) if suspect else None,
        only=_call(only, process, full=True) if only else None,
        in_flight=[_call(call, process, full=False) for call in process.in_flight() if call is not suspect],
        last=[_call(call, process, full=False) for call in _last(process, suspect, case.last)],
        findings=findings,
        device=[device.sentence(position, process.op_of) for position in streams],
        streams=streams,
        targets=_targets(process),
        notes=list(_notes(process)),
        diagnosis=diagnosis.of_findings(findings, suspect, _device_said(verdict, case)),
        chain=_chain(process, verdict, suspect, findings, case, "" if told or not streams else "progress markers"),
    )


def _device_said(verdict: Verdict, case: Case) -> str | None:
    """What was said of a call that the device did not complete; None where there is none."""
    return "\n".join(told.text for told in case.complaints) if verdict is Verdict.CULPRIT else None


def _chain(
    process: Process, verdict: Verdict, suspect: Call | None, findings: list[Finding], case: Case, how: str
) -> chain.Chain | None:
    """The chain of a failure on the device; None for one that is none, or that no call is known of.

    ``how`` is what says which call it was, where that is not what names the kernel.
    """
    seen = complaints.witness(case.complaints)
    on_device = verdict is Verdict.CULPRIT or (seen is not None and verdict is not Verdict.ENDED)
    if suspect is None or not on_device:
        return None
    by = how or (seen.teller.value if seen is not None else "")
    return chain.of(suspect, process, by, findings, case.complaints)


def _findings(process: Process, verdict: Verdict, suspect: Call | None, case: Case) -> list[Finding]:
    """What the rules find in the call to look at, and in those whose results first went wrong."""
    about = rules.Suspect(
        suspect or _NO_CALL,
        case.history.earlier,
        process,
        case.source,
        case.complaints,
        witnessed=verdict is Verdict.CULPRIT,
        stopped=case.ending.stopped or bool(case.ending.running.get(process.name)),
        peers=case.history.processes,
        environment=case.environment,
        failed=case.ending.failed,
    )
    if suspect is not None:
        found = [rules.deepened(finding, about) for finding in rules.check_all(about)]
    else:
        found = rules.check_all(about, rules.OF_THE_RUN) if case.ending.failed else []
    late = any(finding.verdict is Found.CANNOT_TELL for finding in found)
    bad = _given_bad_indices(process) if suspect is None or late else []
    for call in {call.n: call for call in process.noted() + bad}.values():
        if call is not suspect:
            other = about.of(call)
            every = [rules.deepened(finding, other) for finding in rules.check_all(other)]
            found += [_named(finding) for finding in every if finding.verdict in _OF_OTHERS]
    known = {finding.origin for finding in found}
    return ranked([finding for finding in found if finding.call not in known or finding.verdict is not Found.CAUSE])


_OF_OTHERS = (Found.CAUSE, Found.OUTSIDE, Found.UPSTREAM)
"""What a finding must say to be told of another call than the one that failed."""
MOST_GIVEN_BAD = 3


def _given_bad_indices(process: Process) -> list[Call]:
    """The first of the calls still kept that were given an index beyond what they index, and came back."""
    broken = (call for call in process.recent.values() if breaks_contract(call))
    return list(islice(broken, MOST_GIVEN_BAD))


def _named(finding: Finding) -> Finding:
    """A finding whose text says which call it is about."""
    named = f"{finding.op} (call {finding.call})"
    if finding.text.startswith(named):
        return finding
    return msgspec.structs.replace(finding, text=f"{named}: {finding.text}")


_NO_CALL = Call("", schema.Call(0, 0))


def _only(process: Process, history: History) -> Call | None:
    """The only call of the only process, of which there is nothing to say but what it was given and gave."""
    if process.calls != 1 or len(history.processes) != 1:
        return None
    return next((call for thread in process.threads.values() for call in thread.last), None)


def _device_failed(process: Process, suspect: Call | None, ending: Ending) -> bool:
    """Whether an error of the device ended the process, so that what it had not completed is no mere backlog."""
    if _exited_well(process, ending):
        return False
    return ending.device_failed or (suspect is not None and DEVICE_ERROR.search(suspect.message) is not None)


def _blame(
    process: Process,
    streams: list[device.Position],
    verdict: Verdict,
    surfaced: Call | None,
    conclusion: str,
) -> tuple[Verdict, Call | None, str]:
    """The culprit, the first call in stream order that began and did not complete, or what stands in for one."""
    first = streams[0]
    host = f"the host had got to {process.op_of(first.host)} (call {first.host})"
    if surfaced is not None:
        host = f"the error surfaced in {surfaced.op} (call {surfaced.n}), and {host}"
    culprit = process.marked_call(first.call)
    if first.inside is not None:
        return _blame_captured(process, first.inside, culprit, host)
    if first.reach is device.Reach.IN_CALL and culprit is not None:
        text = f"{culprit.op} (call {culprit.n}) began on the device and did not complete; {host}."
        others = sum(position.reach is not device.Reach.CAUGHT_UP for position in streams) - 1
        if others:
            text += f" {others} more streams had not caught up: synchronise them one by one to tell which was first."
        return Verdict.CULPRIT, culprit, text
    if first.reach is device.Reach.UNRECORDED:
        after = f"after {process.op_of(first.call)} (call {first.call})" if first.call else "before the first call"
        text = f"The device failed in unrecorded work {after}; {host}. Make a boundary of what runs there to name it."
        return Verdict.CULPRIT, culprit, text
    return verdict, surfaced, conclusion


def _blame_captured(
    process: Process, inside: device.Inside, replay: Call | None, host: str
) -> tuple[Verdict, Call | None, str]:
    """The culprit in a CUDA graph: a captured call, or what was captured between two of them."""
    where = f"graph {inside.graph}, in its replay number {inside.replays}"
    captured = process.marked_call(inside.call)
    if inside.reach is device.Reach.IN_CALL and captured is not None:
        call = f"{captured.op} (call {captured.n}), captured into {where},"
        return Verdict.CULPRIT, captured, f"{call} began on the device and did not complete; {host}."
    if inside.reach is device.Reach.CANNOT_TELL:
        text = f"The device failed in {where}, at captured call {inside.call}, which the record no longer has; {host}."
        return Verdict.CULPRIT, replay, text
    after = f"after {captured.op} (call {captured.n})" if captured is not None else "before its first call"
    text = f"The device failed in unrecorded work {after} of {where}; {host}."
    return Verdict.CULPRIT, captured or replay, text


def _judge(process: Process, ending: Ending) -> tuple[Verdict, Call | None]:
    """What became of a process, and the call to look at."""
    if process.calls == 0:
        return Verdict.NO_CALLS, None
    raised = None if _exited_well(process, ending) else process.raised()
    in_flight = process.in_flight() if not process.ended and not _exited_well(process, ending) else []
    if raised is not None and not process.ends_recorded:
        return Verdict.EXCEPTION, raised
    if in_flight:
        sure = process.ends_recorded and not _may_have_raised(in_flight[0]) and in_flight[0].op != NAMELESS
        sure = sure and not _lost_since(in_flight[0], process)
        return Verdict.IN_FLIGHT if sure else Verdict.CANNOT_TELL, in_flight[0]
    if raised is not None:
        return Verdict.EXCEPTION, raised
    if process.ended or process.header is None or _exited_well(process, ending):
        return Verdict.ENDED, None
    if ending.running.get(process.name):
        return Verdict.RUNNING, None
    return Verdict.CANNOT_TELL if LOST in process.notes else Verdict.BETWEEN_CALLS, None


def _exited_well(process: Process, ending: Ending) -> bool:
    """Whether the process is known to have exited with 0, so that no exception in it was the end of it."""
    return process.header is not None and process.header.pid in ending.exited_well


def _is_over(process: Process, ending: Ending) -> bool:
    """Whether the process is known to have ended."""
    running = ending.running.get(process.name)
    return running is False or (running is None and ending.known and process.header is not None)


def _may_have_raised(call: Call) -> bool:
    """FlashInfer's log has no line for exceptions: a call that others have outlived may have ended in one."""
    return call.record.target == FLASHINFER and call.outlived


def _conclusion(process: Process, verdict: Verdict, suspect: Call | None, ending: Ending) -> str:
    where = f"process {process.name}" if process.name != "main" else "the process"
    if suspect is None:
        return _without_suspect(process, verdict, where, ending)
    call = f"{suspect.op} (call {suspect.n})"
    if verdict is Verdict.EXCEPTION:
        raised = f"{call} raised {suspect.exception} in {where}: {_first_line(suspect.message)}"
        return raised + _passed(suspect, process)
    if verdict is Verdict.IN_FLIGHT:
        if ending.running.get(process.name):
            return f"{call} is in flight: {where} is running, and the call has not come back."
        end = f"when {where} ended" if _is_over(process, ending) else f"where the record of {where} ends"
        return f"{call} was in flight {end}: its inputs are recorded, its end is not."
    if _lost_since(suspect, process):
        return f"{call} is the last call that is recorded of {where}: {_lost(process)}, so that it may have come back."
    if suspect.op == NAMELESS:
        return "The text names no call: it holds tensors, and nothing on what became of them."
    if suspect.outlived:
        return (
            f"{call} has no end in the record of {where}, though calls after it came back; FlashInfer's log does "
            "not say whether it was in flight or had raised an exception."
        )
    return f"{call} is the last call that {where} logged; below level 3 a log does not say whether it came back."


def _without_suspect(process: Process, verdict: Verdict, where: str, ending: Ending) -> str:
    if verdict is Verdict.NO_CALLS:
        return f"No calls were recorded in {where}."
    text = _what_ended(process, where)
    if LOST in process.notes:
        ended = "It ended by itself." if verdict is Verdict.ENDED else "Which call it was in at its end is not known."
        return f"{process.calls} calls of {where} are recorded; {_lost(process)}. {ended}"
    if verdict is Verdict.RUNNING:
        return f"{text}; it is running, in code that is not recorded."
    if verdict is Verdict.BETWEEN_CALLS:
        runs = "" if _is_over(process, ending) else ", or runs still"
        return f"{text}; it died after the last one{runs}, in code that is not recorded."
    if process.end is not None and (open_calls := process.in_flight()):
        text += f", but for {len(open_calls)} in threads that it left behind when it ended by itself"
    return text + "."


def _lost_since(call: Call, process: Process) -> bool:
    """Whether records could not be written after the call had begun."""
    return LOST in process.notes and process.notes[LOST].t >= call.record.t


def _lost(process: Process) -> str:
    return f"{process.notes[LOST].count} records could not be written"


def _what_ended(process: Process, where: str) -> str:
    calls = f"{_all(process)} {process.calls} calls of {where}" if process.calls > 1 else f"The one call of {where}"
    handled = process.raised()
    if handled is not None:
        return (
            f"{calls} ended; {handled.op} (call {handled.n}) did in {handled.exception}, "
            "which the program handled, for it exited with 0"
        )
    if process.raises:
        return f"{calls} ended" + (f", {process.raises} of them" if process.calls > 1 else "") + " in an exception"
    return f"{calls} came back"


def _all(process: Process) -> str:
    """What the calls of a process's record are: a ring keeps the last ones, and its first segment is then gone."""
    gone = process.header is not None and process.header.segment > 1
    return "The last" if gone else "All"


def _passed(suspect: Call, process: Process) -> str:
    """What became of an exception on its way through the calls around."""
    passed = process.thread(suspect.record.tid).passed
    if passed is None or (passed.exception, passed.message) == (suspect.exception, suspect.message):
        return ""
    return f" It left {passed.op} (call {passed.n}) as {passed.exception}: {_first_line(passed.message)}"


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def _last(process: Process, suspect: Call | None, count: int) -> list[Call]:
    """The last calls that ended in the suspect's thread; in all where there is no suspect, or no other call in it.

    They come by number, as in ``firstfault log``, not as they ended: a call comes before those that it made.
    """
    every = [call for thread in process.threads.values() for call in thread.last if call is not suspect]
    own = [call for call in every if suspect is not None and call.record.tid == suspect.record.tid]
    return sorted(own or every, key=lambda call: call.n)[-count:] if count else []


def _targets(process: Process) -> list[TargetReport]:
    """What was recorded of each target, most calls first."""
    names = dict.fromkeys([*(name for name, _ in process.by_target), *process.targets])
    found = [_target(name, process) for name in names if process.targets]
    return sorted(found, key=lambda target: -target.calls)[:MOST_TARGETS]


def _target(name: str, process: Process) -> TargetReport:
    told = process.targets.get(name)
    library = f"{told.library} {told.version}".strip() if told else ""
    boundaries, gap = (told.boundaries, told.gap) if told else (0, "")
    calls = [count for (target, _), count in process.by_target.items() if target == name]
    return TargetReport(name, library, max(boundaries, len(calls)), len(calls), sum(calls), gap)


def _notes(process: Process) -> Iterator[str]:
    for note in process.notes.values():
        yield note.message if note.count == 1 else f"{note.message} ({note.count} times)"
    if _all_left_out(process):
        yield "no call was dumped: FIRSTFAULT_DUMP_INCLUDE or FIRSTFAULT_DUMP_EXCLUDE left out all that came back"
    for reason, count in process.dumps_skipped.items():
        yield f"tensor dump skipped: {reason}" + (f" ({count} times)" if count > 1 else "")


def _all_left_out(process: Process) -> bool:
    """Whether the patterns for dumps let no call through: what was skipped for another reason has a record."""
    wanted = process.header is not None and process.header.level >= Level.DUMPS
    return wanted and process.returns > 0 and not process.dumps and not process.dumps_skipped


def _call(call: Call, process: Process, *, full: bool) -> CallReport:
    record = call.record
    stack = process.thread(record.tid).open
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
        described=record.args is not None,
        mutated=list(call.mutated),
        exception=call.exception,
        message=call.message,
        dump=call.dump,
        dump_skipped=call.dump_skipped,
        graph=record.graph,
        replay=record.replay if record.device < 0 else 0,
    )
    if full:
        report.inputs = [Argument(name, value) for name, value in call.inputs()]
        report.output = Argument("return", call.out) if call.out_described else None
    return report
