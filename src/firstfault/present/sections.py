"""A report as a list of sections: the order and the words, shared by terminal and Markdown.

Conclusion first, then evidence, then what to type next. Text that came from the program stands in it as it
was: whoever prints it makes it inert.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from firstfault.diagnose import commands
from firstfault.diagnose.chain import Chain
from firstfault.diagnose.finding import Confidence, Finding
from firstfault.diagnose.report import Argument, CallReport, ProcessReport, Report, TargetReport, Verdict
from firstfault.present import values
from firstfault.read.formats.complaint import Complaint
from firstfault.settings import Level

MOST_PROCESSES = 8
MOST_ROWS = 24
MOST_FINDINGS = 8
MOST_PARENTS = 8
MOST_COMPLAINTS = 6
LONGEST_LINE = 400
LONGEST_TEXT = 160
LONGEST_NAME = 80

NEXT = "Next"
"""Title of the last section: what to type next."""
SHOWN_BEFORE = 5
"""Calls before the suspect that the command for the log shows."""

_TITLES = {Verdict.IN_FLIGHT: "Call in flight", Verdict.EXCEPTION: "Call that raised"}


class Label(str):
    """What a line tells of: ``op``."""

    __slots__ = ()


class Code(str):
    """A name, a path or a command, to be taken as it stands; all other text is prose."""

    __slots__ = ()


Line: TypeAlias = tuple[str, ...]
"""Labels, code and prose, to be joined."""


@dataclass
class Section:
    """A heading with lines or a table below it; ``verbatim`` lines are another program's.

    ``findings`` are what the table sums up, if it does, for those who have room for all of them, and ``process`` the
    name of the process that they are of.
    """

    title: str
    lines: list[Line] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[Line] = field(default_factory=list)
    verbatim: bool = False
    findings: list[Finding] = field(default_factory=list)
    process: str = ""


def sections(report: Report) -> Iterator[Section]:
    """Everything below the conclusion, what matters most first."""
    yield _command(report)
    for process in report.processes[:MOST_PROCESSES]:
        yield from _process(process, alone=len(report.processes) == 1)
    left = len(report.processes) - MOST_PROCESSES
    if left > 0:
        yield Section("More processes", [(f"{left} more, in --json",)])
    if report.complaints:
        yield _complaints(report.complaints)
        if not any(process.chain for process in report.processes):
            yield from _on_device(report.complaints)
    if report.unseen:
        yield Section("Nothing recorded in", _lines(report.unseen))
    if report.stderr:
        yield Section("End of stderr", _lines(report.stderr), verbatim=True)
    if report.problems:
        yield Section("Not read", [(problem,) for problem in report.problems])
    steps = list(_next_steps(report))
    if steps:
        yield Section(NEXT, steps)


def _command(report: Report) -> Section:
    lines: list[Line] = []
    if report.command:
        lines.append((Label("command"), Code(shlex.join(report.command))))
    if report.ended:
        lines.append((Label("ended"), report.ended))
    lines += [(Label("mode"), condition) for condition in report.conditions]
    lines.append((Label("source"), Code(report.source), f" ({report.kind})"))
    return Section("Run", lines)


def _process(process: ProcessReport, *, alone: bool) -> Iterator[Section]:
    yield from _who(process, alone=alone)
    if process.chain is not None:
        yield from chain_sections(process.chain)
    call = process.suspect or process.only
    if call is not None:
        yield from _looked_at(call, process)
    if process.findings:
        yield _findings(process)
    if process.in_flight:
        lines: list[Line] = [(Code(call.op), f" (call {call.n}), {_where(call)}") for call in process.in_flight]
        yield Section("Also in flight, in other threads", lines)
    if process.device:
        yield Section("Device", [(sentence,) for sentence in process.device])
    if process.last and process.only is None:
        yield _last(process)
    if any(target.calls and target.library for target in process.targets):
        yield _recorded(process.targets)
    notes = [f"{target.name}: {target.gap}" for target in process.targets if target.gap] + process.notes
    if notes:
        yield Section("Not seen", _lines(notes))


def chain_sections(chain: Chain) -> Iterator[Section]:
    """The links of a chain, and the code that failed."""
    rows: list[Line] = [
        (name, Code(link.text) if link.text else f"not known: {link.missing}", link.by) for name, link in chain.links
    ]
    if chain.access:
        rows.insert(1, ("", chain.access, ""))
    yield Section("Chain of evidence", columns=["link", "what", "by"], rows=rows)
    yield from _code(chain.frames, chain.sass)


def _on_device(complaints: list[Complaint]) -> Iterator[Section]:
    """What a tool saw of the device, of the first complaint that has any."""
    told = next((one for one in complaints if one.sass or one.frames), None)
    if told is not None:
        yield from _code(told.frames, told.sass)


def _code(frames: list[str], sass: list[str]) -> Iterator[Section]:
    if frames:
        yield Section("Stack on the device", _lines(frames), verbatim=True)
    if sass:
        yield Section("Code around the fault", _lines(sass), verbatim=True)


def _lines(texts: list[str]) -> list[Line]:
    return [(values.shortened(text, LONGEST_LINE),) for text in texts]


def _who(process: ProcessReport, *, alone: bool) -> Iterator[Section]:
    if not alone:
        rank = f", rank {process.rank}" if process.rank else ""
        title = f", {process.title}" if process.title else ""
        yield Section(f"Process {process.name}{title}{rank}", [(process.conclusion,)])
    elif process.title:
        yield Section("Process", [(Label("title"), process.title), (Label("rank"), process.rank)])


def _looked_at(call: CallReport, process: ProcessReport) -> Iterator[Section]:
    """The call that matters: what it is, what it was given, and, where that is not what its end is about, gave."""
    yield _call(call, process)
    yield _inputs(call)
    if call.output is not None and (call is process.only or call.replay):
        yield _values("Outputs", [call.output])


def _call(call: CallReport, process: ProcessReport) -> Section:
    left_out = ["…"] if len(call.parents) > MOST_PARENTS else []
    told = {
        "op": Code(call.op),
        "number": f"{call.n}, {_where(call)}",
        "values": f"of replay {call.replay} of graph {call.graph}" if call.replay else "",
        "from": Code(call.site),
        "inside": Code(" > ".join([*left_out, *call.parents[-MOST_PARENTS:]])),
        "raised": Code(f"{call.exception}: {call.message.partition(chr(10))[0]}" if call.exception else ""),
        "changed": Code(", ".join(call.mutated)),
        "dump": Code(call.dump),
        "no dump": call.dump_skipped,
    }
    lines: list[Line] = [(Label(label), text) for label, text in told.items() if text]
    return Section(_TITLES.get(process.verdict, "Last call"), lines)


def _recorded(targets: list[TargetReport]) -> Section:
    used = [target for target in targets if target.calls][:MOST_ROWS]
    rows: list[Line] = [
        (
            values.shortened(target.name, LONGEST_NAME),
            values.shortened(target.library, LONGEST_NAME),
            str(target.boundaries),
            str(target.used),
            str(target.calls),
        )
        for target in used
    ]
    return Section("Recorded", columns=["target", "of", "boundaries", "called", "calls"], rows=rows)


def _where(call: CallReport) -> str:
    if not call.line:
        return f"thread {call.thread}"
    return f"line {call.line} of the log" + (f", thread {call.thread}" if call.thread else "")


def _inputs(call: CallReport) -> Section:
    if call.inputs:
        return _values("Inputs", call.inputs)
    if call.described:
        return Section("Inputs", [("none: the call takes no arguments",)])
    return Section("Inputs", [("none recorded; level 3 records shapes, level 5 statistics, level 10 the tensors",)])


def _values(title: str, arguments: list[Argument]) -> Section:
    """A table with a row for each tensor, with its statistics if there are any."""
    rows = [row for argument in arguments for row in values.rows(argument.name, argument.value)]
    shown: list[Line] = [
        (Code(values.shortened(name, LONGEST_NAME)), Code(value), *rest) for name, value, *rest in rows[:MOST_ROWS]
    ]
    if len(rows) > MOST_ROWS:
        shown.append(("…", f"{len(rows) - MOST_ROWS} more, in --json", ""))
    with_statistics = any(row[2] for row in shown)
    columns = ["argument", "value", "values from … to"] if with_statistics else ["argument", "value"]
    return Section(title, columns=columns, rows=[row[: len(columns)] for row in shown])


def _findings(process: ProcessReport) -> Section:
    shown = process.findings[:MOST_FINDINGS]
    rows: list[Line] = [
        (finding.confidence.value, f"{finding.rule} {finding.title}", finding.text) for finding in shown
    ]
    left = len(process.findings) - len(shown)
    if left:
        rows.append(("", "", f"{left} more, in --json"))
    title = "Suspicious in its inputs" if process.suspect is not None else "Where it first went wrong"
    return Section(
        title, columns=["weight", "rule", "what"], rows=rows, findings=process.findings, process=process.name
    )


def _complaints(complaints: list[Complaint]) -> Section:
    """What was said, and where in which input."""
    rows: list[Line] = [
        (told.teller.value, values.shortened(told.text, LONGEST_TEXT), Code(told.where or told.host), _times(told))
        for told in complaints[:MOST_COMPLAINTS]
    ]
    left = len(complaints) - len(rows)
    if left:
        rows.append(("", f"{left} more, in --json", "", ""))
    return Section("What was said of it", columns=["by", "what", "at", "in"], rows=rows)


def _times(told: Complaint) -> str:
    """The line that says so, and how often it is said."""
    return f"{told.source}:{told.at}" + (f", {told.count} times" if told.count > 1 else "")


def _last(process: ProcessReport) -> Section:
    rows: list[Line] = [
        (str(call.n), Code(call.op), call.state, f"{call.duration / 1e3:.0f} µs" if call.duration else "")
        for call in process.last
    ]
    return Section(f"{_title_of_last(process)}, by number", columns=["call", "op", "end", "host time"], rows=rows)


def _title_of_last(process: ProcessReport) -> str:
    suspect = process.suspect
    if suspect is None:
        return "Last calls"
    if any(call.thread != suspect.thread for call in process.last):
        return "Last calls of other threads"
    return "Last calls before it" if process.last[-1].n < suspect.n else "Last calls of its thread"


def _next_steps(report: Report) -> Iterator[Line]:
    first = report.processes[0] if report.processes else None
    if first is None or first.verdict is Verdict.NO_CALLS:
        if report.complete:  # else they may be among what was not read
            yield _record_calls(report)
    elif first.suspect is not None:
        yield from _look_at(first.suspect, first, report)
    else:
        yield from _weightiest(first)
        if first.verdict is Verdict.BETWEEN_CALLS:
            yield (
                "to name what it died in, decorate it with @debug_kernel_api, or record every PyTorch operator: ",
                Code(_record(report, targets=[*report.targets, "aten"])),
            )
        if first.raised and first.only is None:
            yield ("see which calls raised what: ", Code(_log(report)))


def _record_calls(report: Report) -> Line:
    """What would give calls, of a run that gave none."""
    if report.level == Level.OFF:
        return ("level 0 records nothing: ", Code(_record(report, level=3)))
    if report.targets:
        return (
            "no boundary was called: it used nothing that is recorded by itself (see firstfault targets), or not in a "
            "Python that could be recorded; decorate what it runs on the GPU with @debug_kernel_api",
        )
    return (
        "no boundary was called: decorate functions with @debug_kernel_api, or attach to what the program uses: ",
        Code(_record(report)),
    )


def _weightiest(process: ProcessReport) -> Iterator[Line]:
    """What would settle the finding that weighs most."""
    weighty = [finding for finding in process.findings if finding.confidence is not Confidence.LOW]
    if weighty:
        step, command = weighty[0].next_step, weighty[0].command
        yield (f"{step}: ", Code(command)) if command else (step,)


def _look_at(suspect: CallReport, process: ProcessReport, report: Report) -> Iterator[Line]:
    """What would tell more of a call."""
    yield from _weightiest(process)
    if process.verdict is Verdict.CANNOT_TELL and not suspect.described:
        yield ("record once more at level 3, which writes down when calls come back",)
    elif process.level >= Level.DUMPS and not suspect.dump and not suspect.dump_skipped:
        yield (
            "its inputs were not saved, at level 10: FIRSTFAULT_DUMP_INCLUDE or FIRSTFAULT_DUMP_EXCLUDE left it out, "
            "or it ended before they were",
        )
    elif process.level < Level.DUMPS and not suspect.dump and process.verdict is Verdict.IN_FLIGHT:
        yield ("record once more at level 10, which saves its inputs: ", Code(_record(report, level=10)))
    before = min(SHOWN_BEFORE, suspect.n - 1, process.calls - 1)
    if before > 0:
        since = max(0, process.calls - suspect.n)
        yield ("see the calls before it: ", Code(f"{_log(report)} --last {before + 1 + since}"))


def _record(report: Report, *, level: int | None = None, targets: Sequence[str] = ()) -> str:
    """The command that records what was run once more."""
    return commands.of_run(commands.record(level=level, targets=targets), report.command)


def _log(report: Report) -> str:
    return f"firstfault log {shlex.quote(report.source)}"
