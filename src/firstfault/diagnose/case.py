"""A source's calls → one report: what was in flight, what was raised, what is suspicious in it.

build(Case(history, "recording", …))  →  Report(conclusion="moe_align (call 37) was in flight when …", …)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from firstfault.diagnose import chain, complaints, device, diagnosis, judgement, rules, witnessed
from firstfault.diagnose.finding import Confidence, Finding, Kind, ranked
from firstfault.diagnose.finding import Verdict as Found
from firstfault.diagnose.judgement import LOST, Ending
from firstfault.diagnose.report import (
    REPORT_VERSION,
    Argument,
    CallReport,
    ProcessReport,
    Report,
    TargetReport,
    Verdict,
)
from firstfault.diagnose.rules.ff501_index_out_of_range import breaks_contract
from firstfault.read.calls import Call
from firstfault.read.formats.complaint import Complaint, Teller
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.record import progress, schema
from firstfault.settings import Level

MOST_TARGETS = 50
DUMP = "dump"
"""The kind of a source that is one dumped call: what failed with it can only be of that."""


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
    lost = [f"{process.name}: {judgement.lost(process)}" for process in every if LOST in process.notes]
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
        found.conclusion = _with_what_was_raised(processes[0], case)
        found.diagnosis = processes[0].diagnosis or _said(processes[0], case)
        if found.diagnosis is not None and _goes_first(found.diagnosis):
            found.conclusion = f"{found.conclusion.removesuffix('.')}; {found.diagnosis.text}."
    elif case.complaints:
        found.conclusion = complaints.conclusion(case.complaints)
        found.diagnosis = diagnosis.of_complaints(case.complaints)
    return found


def _with_what_was_raised(process: ProcessReport, case: Case) -> str:
    """What became of a process, and the exception that ended it where that was raised in no recorded call."""
    raised = [told for told in case.complaints if told.teller is Teller.PYTHON]
    if not raised or not case.ending.failed or process.verdict is not Verdict.ENDED:
        return process.conclusion
    text = complaints.shortened(raised[-1].text)
    at = f" at {raised[-1].host}" if raised[-1].host else ""
    return f"{process.conclusion.removesuffix('.')}; what ended the program was raised in none of them: {text}{at}."


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
    verdict, suspect = judgement.judge(process, case.ending)
    conclusion = judgement.conclusion(process, verdict, suspect, case.ending)
    page = case.pages.get(process.name)
    streams = device.positions(page, process.marks) if page is not None else []
    one = _only(process, case.history) if case.kind == DUMP else None
    well = judgement.exited_well(process, case.ending)
    seen = witnessed.find(case.complaints, process, only=one, exited_well=well)
    told = seen is not None and witnessed.overrules(seen, streams, process)
    if told and seen is not None:
        verdict, suspect, conclusion = Verdict.CULPRIT, seen.call, seen.text
    elif streams and judgement.device_failed(process, suspect, case.ending):
        verdict, suspect, conclusion = judgement.blame(process, streams, verdict, suspect, conclusion)
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
        ended_at=case.ending.at,
    )
    process.follow()
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
