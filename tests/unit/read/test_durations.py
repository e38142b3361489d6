"""Calls that took far longer than those before them."""

from __future__ import annotations

from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.record import schema
from tests.unit.read.samples import tensor

MS = 1_000_000


def timed(*durations: int, op: str = "step", extent: int = 4) -> Process:
    """A process whose calls took so long, in nanoseconds."""
    history = History()
    for n, duration in enumerate(durations, 1):
        begun = schema.Call(n, n * 10**10, op, tid=1, args=[tensor(extent)], kwargs={})
        for record in (begun, schema.Return(n, n * 10**10 + duration, 1, described=True)):
            history.feed(Event("main", record))
    return history.processes["main"]


def test_calls_that_stay_slow_are_noticed_with_the_first_of_them() -> None:
    (slow,) = timed(*[MS] * 12, *[9 * MS] * 7).durations.slow
    assert (slow.first.n, slow.calls, slow.usual, slow.took, slow.ended) == (13, 7, MS, 9 * MS, False)
    assert slow.lost == 7 * 8 * MS


def test_a_hiccup_is_not_and_a_long_stall_is() -> None:
    assert timed(*[MS] * 12, 30 * MS, *[MS] * 5).durations.slow == []
    (stall,) = timed(*[MS] * 12, 900 * MS, *[MS] * 5).durations.slow
    assert (stall.first.n, stall.calls, stall.ended) == (13, 1, True)


def test_first_calls_that_compile_are_left_out() -> None:
    assert timed(800 * MS, 700 * MS, *[MS] * 20).durations.slow == []


def test_slow_from_the_start_is_usual() -> None:
    assert timed(*[30 * MS] * 20).durations.slow == []


def test_larger_inputs_are_held_against_larger_ones() -> None:
    history = History()
    for n in range(1, 40):
        long = n % 10 == 0
        begun = schema.Call(n, n * 10**10, "step", tid=1, args=[tensor(4096 if long else 1)], kwargs={})
        ended = schema.Return(n, n * 10**10 + (800 * MS if long else MS), 1, described=True)
        for record in (begun, ended):
            history.feed(Event("main", record))
    assert history.processes["main"].durations.slow == []


def test_the_time_of_calls_inside_is_theirs() -> None:
    history = History()
    for n in range(1, 41, 2):
        took = 600 * MS if n > 30 else MS
        at = n * 10**10
        for record in (
            schema.Call(n, at, "outer", tid=1),
            schema.Call(n + 1, at + 10, "inner", tid=1, parent=n),
            schema.Return(n + 1, at + 10 + took, 1),
            schema.Return(n, at + 20 + took, 1),
        ):
            history.feed(Event("main", record))
    assert [slow.first.op for slow in history.processes["main"].durations.slow] == ["inner"]
