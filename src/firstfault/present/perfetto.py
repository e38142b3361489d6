"""All calls as a trace that ui.perfetto.dev and chrome://tracing open: a track a thread, a span a call.

{"traceEvents":[
{"ph":"M","pid":1,"name":"process_name","args":{"name":"vm-4242"}},
{"ph":"X","pid":1,"tid":4242,"ts":233.125,"dur":41.5,"name":"moe_align","args":{"call":6,"arg[0]":"(769,) …"}}
],"displayTimeUnit":"ns","otherData":{"clock_origin_ns":"1764418858000000000"}}

The format is Chrome's Trace Event Format: times are in microseconds, here since the first record. A call that has no
end is an open span (``B``). Sources that do not say when calls end, as text logs, get spans that nest as the calls did,
a nanosecond for each begin and end. Where devices had got to stands as a mark at the end of its process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from firstfault.diagnose.report import Report
from firstfault.present import values
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.record import schema
from firstfault.record.text_log import one_line

MOST_OPEN = 4096
"""Calls that one thread can be in."""
UNNAMED = 2**22
"""The track of calls that name no thread: Linux has no thread of that number, and 0 is the idle task to Perfetto."""
MOST_VALUES = 12
LONGEST = 160


@dataclass
class _Thread:
    """The calls that a thread is in, and its last time, from the trace's origin on: spans of a track must nest."""

    latest: int
    open: list[tuple[schema.Call, int]] = field(default_factory=list)

    def at(self, t: int) -> int:
        """A time that is not before what the thread did last, in nanoseconds."""
        self.latest = max(t, self.latest + 1)
        return self.latest


@dataclass
class _Process:
    number: int
    threads: dict[int, _Thread] = field(default_factory=dict)
    of_call: dict[int, int] = field(default_factory=dict)
    """The thread of each open call."""
    latest: int = 0


def lines(report: Report, history: History, events: Iterable[Event]) -> Iterator[str]:
    """The trace, line by line, in constant memory.

    Args:
        report: what is told of the same records; its conclusions become marks.
        history: for the time of the first record.
        events: all records.
    """
    origin = min((process.header.t for process in history.processes.values() if process.header), default=0)
    writer = _Writer(origin)
    yield '{"traceEvents":['
    between = "\n"
    for made in writer.events(events, report):
        yield between + msgspec.json.encode(made).decode()
        between = ",\n"
    about = {"clock_origin_ns": str(writer.origin), "conclusion": one_line(report.conclusion), "source": report.source}
    yield f'\n],"displayTimeUnit":"ns","otherData":{msgspec.json.encode(about).decode()}}}\n'


class _Writer:
    def __init__(self, origin: int) -> None:
        self.origin = origin
        self._processes: dict[str, _Process] = {}

    def events(self, events: Iterable[Event], report: Report) -> Iterator[dict[str, Any]]:
        """Every event of the trace."""
        for event in events:
            process = self._processes.get(event.process)
            if process is None:
                process = self._processes[event.process] = _Process(len(self._processes) + 1)
                yield self._named(process.number, "process_name", event.process)
            record = event.record
            if isinstance(record, schema.Call):
                yield from self._begin(process, record)
            elif isinstance(record, schema.Inputs):
                self._given(process, record)
            elif isinstance(record, (schema.Return, schema.Raise)):
                yield from self._end(process, record)
        for process in self._processes.values():
            yield from self._unfinished(process)
        yield from self._marks(report)

    def _begin(self, process: _Process, call: schema.Call) -> Iterator[dict[str, Any]]:
        self.origin = self.origin or call.t
        thread = process.threads.get(call.tid)
        if thread is None:
            thread = process.threads[call.tid] = _Thread(self.origin)
            yield self._named(process.number, "thread_name", f"thread {call.tid}", call.tid or UNNAMED)
        while thread.open and (thread.open[-1][0].n > call.parent or len(thread.open) >= MOST_OPEN):  # its end was lost
            yield self._span(process, thread, {"end": "not known"})
        thread.open.append((call, thread.at(call.t)))
        process.of_call[call.n] = call.tid

    def _given(self, process: _Process, record: schema.Inputs) -> None:
        """Statistics, which come after the call."""
        thread = process.threads.get(process.of_call.get(record.n, -1))
        for call, _ in thread.open if thread is not None else ():
            if call.n == record.n:
                call.args, call.kwargs = record.args, (call.kwargs or {}) | record.kwargs

    def _end(self, process: _Process, record: schema.Return | schema.Raise) -> Iterator[dict[str, Any]]:
        """The span of a call, and of those inside it, whose ends were lost."""
        if record.n not in process.of_call:
            return
        thread = process.threads[process.of_call[record.n]]
        thread.at(record.t)
        while thread.open[-1][0].n != record.n:
            yield self._span(process, thread, {"end": "not known"})
        yield self._span(process, thread, _told_at_end(record))

    def _span(self, process: _Process, thread: _Thread, end: dict[str, Any]) -> dict[str, Any]:
        """A call that has ended, now."""
        call, begun = thread.open.pop()
        process.of_call.pop(call.n, None)
        process.latest = max(process.latest, thread.latest)
        made = self._event("X", process.number, call, begun) | {"dur": (thread.latest - begun) / 1000}
        made["args"] |= end
        return made

    def _unfinished(self, process: _Process) -> Iterator[dict[str, Any]]:
        for thread in process.threads.values():
            process.latest = max(process.latest, thread.latest)
            for call, begun in thread.open:
                made = self._event("B", process.number, call, begun)
                made["args"]["end"] = "in flight"
                yield made

    def _marks(self, report: Report) -> Iterator[dict[str, Any]]:
        """What the report says of each process, where its record ends."""
        for told in report.processes:
            process = self._processes.get(told.name)
            if process is None:
                continue
            tid = next(iter(process.threads), 0) or UNNAMED
            for category, sentence in (("conclusion", told.conclusion), *(("device", text) for text in told.device)):
                name = one_line(sentence)
                place = {"pid": process.number, "tid": tid, "ts": self._microseconds(process.latest)}
                yield {"ph": "i", "s": "p", "cat": category, "name": name, **place}

    def _event(self, phase: str, process: int, call: schema.Call, begun: int) -> dict[str, Any]:
        place = {"pid": process, "tid": call.tid or UNNAMED, "ts": self._microseconds(begun)}
        return {"ph": phase, "cat": call.target, "name": one_line(call.op), **place, "args": _told(call)}

    def _microseconds(self, t: int) -> float:
        return max(0, t - self.origin) / 1000

    def _named(self, process: int, what: str, name: str, tid: int = 0) -> dict[str, Any]:
        made: dict[str, Any] = {"ph": "M", "pid": process, "name": what, "args": {"name": one_line(name)}}
        return made | ({"tid": tid} if tid else {})


def _told(call: schema.Call) -> dict[str, Any]:
    told: dict[str, Any] = {"call": call.n}
    told |= {"site": one_line(call.site)} if call.site else {}
    told |= {"graph": call.graph} if call.graph else {}
    named = [(f"arg[{index}]", value) for index, value in enumerate(call.args or ())]
    return told | _described([*named, *(call.kwargs or {}).items()])


def _told_at_end(record: schema.Return | schema.Raise) -> dict[str, Any]:
    if isinstance(record, schema.Raise):
        return {"raised": one_line(values.shortened(f"{record.exception}: {record.message}", LONGEST))}
    return _described([("return", record.out)]) if record.described else {}


def _described(arguments: list[tuple[str, schema.Value]]) -> dict[str, str]:
    rows = [row for name, value in arguments for row in values.rows(name, value)]
    shown = {
        one_line(values.shortened(name, LONGEST)): one_line(
            values.shortened(f"{value}  {statistics}".rstrip(), LONGEST)
        )
        for name, value, statistics in rows[:MOST_VALUES]
    }
    return shown | ({"…": f"{len(rows) - MOST_VALUES} more"} if len(rows) > MOST_VALUES else {})


def _short(text: str) -> str:
    return one_line(values.shortened(text, LONGEST))
