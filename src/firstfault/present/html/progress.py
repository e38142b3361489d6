"""How far host and device had got, as bars over the calls of a process.

vm-4242  host    ████████████████████ begun 100 of 100
         stream  ███████▌             completed up to call 36
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firstfault.diagnose.device import Position, Reach
from firstfault.diagnose.report import ProcessReport, Report

MOST_PROCESSES = 16


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        process: whose, of the first bar of each process; empty for the others.
        name: ``host``, or the device and its stream.
        reached: how much of it is done, in percent.
        doing: how much more had been begun, in percent.
        text: the same in words.
        stopped: whether it did not get as far as the host.
    """

    process: str
    name: str
    reached: float
    doing: float
    text: str
    stopped: bool = False


def bars(report: Report) -> Iterator[Bar]:
    """The host's bar of each process, and below it those of the device's streams."""
    for process in report.processes[:MOST_PROCESSES]:
        if process.calls:
            yield _host(process)
            yield from (_stream(position, process.calls) for position in process.streams)


def _host(process: ProcessReport) -> Bar:
    open_calls = len(process.in_flight) + (process.suspect is not None and process.suspect.state == "in flight")
    done = 100 * (process.calls - open_calls) / process.calls
    text = f"{process.calls} calls begun" + (f", {open_calls} in flight" if open_calls else "")
    text += f", {process.raised} ended in an exception" if process.raised else ""
    return Bar(process.name, "host", done, 100 - done, text, stopped=bool(open_calls))


def _stream(position: Position, calls: int) -> Bar:
    name = f"cuda:{position.device} stream {position.stream:#x}"
    if position.reach is Reach.CAUGHT_UP:
        return Bar("", name, _percent(position.call, calls), 0, f"completed everything, up to call {position.call}")
    if position.reach is Reach.IN_CALL:
        done, text = position.call - 1, f"in call {position.call}, which it did not complete"
    elif position.reach is Reach.UNRECORDED:
        done = position.call
        text = f"in unrecorded work after call {position.call}" if done else "in unrecorded work before the first call"
    else:
        done, text = position.call, f"at call {position.call}, which the record does not have"
    ahead = max(0, position.host - done)
    return Bar(
        "", name, _percent(done, calls), _percent(ahead, calls), f"{text}; the host got to {position.host}", True
    )


def _percent(count: int, of: int) -> float:
    return min(100.0, 100 * count / of)
