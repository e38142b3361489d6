"""A report as a list of sections: the order and the words, shared by terminal and Markdown.

Conclusion first, then evidence, then what to type next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.report import CallReport, ProcessReport, Report, Verdict
from firstfault.present import values
from firstfault.record.text_log import one_line

MOST_PROCESSES = 8
MOST_ROWS = 24
MOST_FINDINGS = 8


@dataclass
class Section:
    """A heading with lines or a table below it."""

    title: str
    lines: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[str, ...]] = field(default_factory=list)


def sections(report: Report) -> Iterator[Section]:
    """Everything below the conclusion, what matters most first."""
    command = _command(report)
    if command.lines:
        yield command
    for process in report.processes[:MOST_PROCESSES]:
        yield from _process(process, alone=len(report.processes) == 1)
    left = len(report.processes) - MOST_PROCESSES
    if left > 0:
        yield Section("More processes", [f"{left} more, in --json"])
    if report.stderr:
        yield Section("End of stderr", [one_line(line) for line in report.stderr])
    if report.problems:
        yield Section("Not read", [one_line(problem) for problem in report.problems])
    steps = list(_next_steps(report))
    if steps:
        yield Section("Next", steps)


def _command(report: Report) -> Section:
    lines = []
    if report.command:
        lines.append("command  " + one_line(" ".join(report.command)))
    if report.ended:
        lines.append(f"ended    {report.ended}")
    lines.append(f"source   {one_line(report.source)} ({report.kind})")
    return Section("Run", lines)


def _process(process: ProcessReport, *, alone: bool) -> Iterator[Section]:
    if not alone:
        rank = f", rank {process.rank}" if process.rank else ""
        yield Section(f"Process {process.name}{rank}", [process.conclusion])
    suspect = process.suspect
    if suspect is not None:
        yield _call(suspect)
        yield _inputs(suspect)
    if process.findings:
        yield _findings(process)
    if process.in_flight:
        lines = [f"{_name(call)}, thread {call.thread}" for call in process.in_flight]
        yield Section("Also in flight, in other threads", lines)
    if process.last:
        yield _last(process)
    if process.notes:
        yield Section("Not seen", [one_line(note) for note in process.notes])


def _call(call: CallReport) -> Section:
    title = "Call in flight" if call.state == "in flight" else "Call"
    lines = [f"op       {one_line(call.op)}", f"number   {call.n}, thread {call.thread}"]
    if call.line:
        lines[1] = f"number   {call.n}, line {call.line} of the log"
    if call.site:
        lines.append(f"from     {one_line(call.site)}")
    if call.parents:
        lines.append("inside   " + one_line(" > ".join(call.parents)))
    if call.exception:
        lines.append(f"raised   {one_line(call.exception)}: {one_line(call.message)[:400]}")
    if call.dump:
        lines.append(f"dump     {one_line(call.dump)}")
    if call.dump_skipped:
        lines.append(f"no dump  {one_line(call.dump_skipped)}")
    return Section(title, lines)


def _inputs(call: CallReport) -> Section:
    rows = [row for argument in call.inputs for row in values.rows(argument.name, argument.value)]
    if not rows:
        return Section("Inputs", ["none recorded; level 3 records shapes, level 5 statistics, level 10 the tensors"])
    shown = [tuple(one_line(cell) for cell in row) for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        shown.append(("…", f"{len(rows) - MOST_ROWS} more, in --json", ""))
    with_statistics = any(row[2] for row in shown)
    columns = ["argument", "value", "values from … to"] if with_statistics else ["argument", "value"]
    return Section("Inputs", columns=columns, rows=[row[: len(columns)] for row in shown])


def _findings(process: ProcessReport) -> Section:
    shown = process.findings[:MOST_FINDINGS]
    rows: list[tuple[str, ...]] = [
        (finding.confidence.value, f"{finding.rule} {finding.title}", one_line(finding.text)) for finding in shown
    ]
    left = len(process.findings) - len(shown)
    if left:
        rows.append(("", "", f"{left} more, in --json"))
    return Section("Suspicious in its inputs", columns=["weight", "rule", "what"], rows=rows)


def _last(process: ProcessReport) -> Section:
    rows: list[tuple[str, ...]] = [
        (str(call.n), one_line(call.op), call.state, f"{call.duration / 1e3:.0f} µs" if call.duration else "")
        for call in process.last
    ]
    title = "Last calls before it" if process.suspect else "Last calls"
    return Section(title, columns=["call", "op", "end", "host time"], rows=rows)


def _name(call: CallReport) -> str:
    return f"{one_line(call.op)} (call {call.n})"


def _next_steps(report: Report) -> Iterator[str]:
    if not report.processes:
        yield "record with: firstfault run --level 3 -- COMMAND"
        return
    first = report.processes[0]
    weighty = [finding for finding in first.findings if finding.confidence is not Confidence.LOW]
    if weighty:
        yield weighty[0].next_step
    if first.verdict is Verdict.CANNOT_TELL:
        yield "record once more at level 3, which writes down when calls come back"
    elif first.suspect is not None and not first.suspect.dump and first.verdict is Verdict.IN_FLIGHT:
        yield "record once more with: firstfault run --level 10 -- COMMAND, which saves its inputs"
    if first.suspect is not None:
        yield f"see the calls before it: firstfault log {report.source} --last 5"
