"""A report as a list of sections: the order and the words, shared by terminal and Markdown.

Conclusion first, then evidence, then what to type next. Text that came from the program stands in it as it
was: whoever prints it makes it inert.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.report import CallReport, ProcessReport, Report, Verdict
from firstfault.present import values

MOST_PROCESSES = 8
MOST_ROWS = 24
MOST_FINDINGS = 8
MOST_PARENTS = 8
LONGEST_LINE = 400
LONGEST_NAME = 80

_TITLES = {Verdict.IN_FLIGHT: "Call in flight", Verdict.EXCEPTION: "Call that raised"}


@dataclass
class Section:
    """A heading with lines or a table below it."""

    title: str
    lines: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[str, ...]] = field(default_factory=list)


def sections(report: Report) -> Iterator[Section]:
    """Everything below the conclusion, what matters most first."""
    yield _command(report)
    for process in report.processes[:MOST_PROCESSES]:
        yield from _process(process, alone=len(report.processes) == 1)
    left = len(report.processes) - MOST_PROCESSES
    if left > 0:
        yield Section("More processes", [f"{left} more, in --json"])
    if report.stderr:
        yield Section("End of stderr", [values.shortened(line, LONGEST_LINE) for line in report.stderr])
    if report.problems:
        yield Section("Not read", report.problems)
    steps = list(_next_steps(report))
    if steps:
        yield Section("Next", steps)


def _command(report: Report) -> Section:
    lines = []
    if report.command:
        lines.append("command  " + " ".join(report.command))
    if report.ended:
        lines.append(f"ended    {report.ended}")
    lines.append(f"source   {report.source} ({report.kind})")
    return Section("Run", lines)


def _process(process: ProcessReport, *, alone: bool) -> Iterator[Section]:
    if not alone:
        rank = f", rank {process.rank}" if process.rank else ""
        yield Section(f"Process {process.name}{rank}", [process.conclusion])
    suspect = process.suspect
    if suspect is not None:
        yield _call(suspect, process)
        yield _inputs(suspect)
    if process.findings:
        yield _findings(process)
    if process.in_flight:
        lines = [f"{call.op} (call {call.n}), {_where(call)}" for call in process.in_flight]
        yield Section("Also in flight, in other threads", lines)
    if process.device:
        yield Section("Device", process.device)
    if process.last:
        yield _last(process)
    if process.notes:
        yield Section("Not seen", process.notes)


def _call(call: CallReport, process: ProcessReport) -> Section:
    lines = [f"op       {call.op}", f"number   {call.n}, {_where(call)}"]
    if call.site:
        lines.append(f"from     {call.site}")
    if call.parents:
        left_out = ["…"] if len(call.parents) > MOST_PARENTS else []
        lines.append("inside   " + " > ".join([*left_out, *call.parents[-MOST_PARENTS:]]))
    if call.exception:
        lines.append(f"raised   {call.exception}: {call.message.partition(chr(10))[0]}")
    if call.dump:
        lines.append(f"dump     {call.dump}")
    if call.dump_skipped:
        lines.append(f"no dump  {call.dump_skipped}")
    return Section(_TITLES.get(process.verdict, "Last call"), lines)


def _where(call: CallReport) -> str:
    if not call.line:
        return f"thread {call.thread}"
    return f"line {call.line} of the log" + (f", thread {call.thread}" if call.thread else "")


def _inputs(call: CallReport) -> Section:
    rows = [row for argument in call.inputs for row in values.rows(argument.name, argument.value)]
    if not rows:
        reason = "none: the call takes no arguments" if call.described else "none recorded"
        hint = "" if call.described else "; level 3 records shapes, level 5 statistics, level 10 the tensors"
        return Section("Inputs", [reason + hint])
    shown: list[tuple[str, ...]] = [(values.shortened(name, LONGEST_NAME), *row) for name, *row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        shown.append(("…", f"{len(rows) - MOST_ROWS} more, in --json", ""))
    with_statistics = any(row[2] for row in shown)
    columns = ["argument", "value", "values from … to"] if with_statistics else ["argument", "value"]
    return Section("Inputs", columns=columns, rows=[row[: len(columns)] for row in shown])


def _findings(process: ProcessReport) -> Section:
    shown = process.findings[:MOST_FINDINGS]
    rows: list[tuple[str, ...]] = [
        (finding.confidence.value, f"{finding.rule} {finding.title}", finding.text) for finding in shown
    ]
    left = len(process.findings) - len(shown)
    if left:
        rows.append(("", "", f"{left} more, in --json"))
    return Section("Suspicious in its inputs", columns=["weight", "rule", "what"], rows=rows)


def _last(process: ProcessReport) -> Section:
    rows: list[tuple[str, ...]] = [
        (str(call.n), call.op, call.state, f"{call.duration / 1e3:.0f} µs" if call.duration else "")
        for call in process.last
    ]
    title = "Last calls before it" if process.suspect else "Last calls"
    return Section(title, columns=["call", "op", "end", "host time"], rows=rows)


def _next_steps(report: Report) -> Iterator[str]:
    if not report.processes:
        yield "record with: firstfault run --level 3 -- COMMAND"
        return
    first = report.processes[0]
    weighty = [finding for finding in first.findings if finding.confidence is not Confidence.LOW]
    if weighty:
        yield weighty[0].next_step
    suspect = first.suspect
    if suspect is None:
        return
    if first.verdict is Verdict.CANNOT_TELL and not suspect.described:
        yield "record once more at level 3, which writes down when calls come back"
    elif not suspect.dump and first.verdict is Verdict.IN_FLIGHT:
        yield "record once more with: firstfault run --level 10 -- COMMAND, which saves its inputs"
    yield f"see the calls before it: firstfault log {shlex.quote(report.source)} --last 5"
