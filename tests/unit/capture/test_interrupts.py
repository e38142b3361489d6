"""A signal's handler that raises while a call is recorded: later calls are not shown inside that one."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from firstfault.capture import boundary, compiled, recorder
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.recording import Recording

RING = 2**26  # room for all calls, or parents would be missing
WAYS: dict[str, dict[str, Any]] = {
    "names": {"level": 1, "text_dest": None},
    "layouts": {"level": 3, "text_dest": None},
    "values": {"level": 5, "text_dest": None},
    "black box": {"level": 3, "text_dest": None, "ring_bytes": RING},
}


class Interrupted(BaseException):
    """What the handler raises."""


@contextmanager
def interrupts() -> Iterator[None]:
    """Have SIGALRM raise in the middle of what runs; but not in callbacks of the garbage collector, which swallow it."""

    def raise_it(number: int, frame: object) -> None:
        raise Interrupted

    collects = gc.isenabled()
    gc.disable()
    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if collects:
            gc.enable()


@pytest.fixture(params=[True, False], ids=["C", "Python"])
def in_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is written in C, and without."""
    if not request.param:
        monkeypatch.setattr(compiled, "crossing", None)
    elif compiled.crossing is None:
        pytest.skip("the C of crossing/ is not built")


def recorded(record: Record, way: str) -> Recording:
    return record(**WAYS[way])


def parents(found: Recording) -> dict[str, set[str]]:
    """The operators that each operator's calls were made in, as recorded; "" for none."""
    calls = {call.n: call for call in found.of(schema.Call)}
    names = {call.layout: call.op for call in calls.values() if call.op} | {0: ""}
    ops = {n: call.op or names[call.layout] for n, call in calls.items()} | {0: ""}
    within: dict[str, set[str]] = {}
    for n, call in calls.items():
        within.setdefault(ops[n], set()).add(ops[call.parent])
    return within


@pytest.mark.parametrize("way", WAYS)
def test_just_before_the_boundary_holds_the_call(
    record: Record, monkeypatch: pytest.MonkeyPatch, in_c: None, way: str
) -> None:
    found = recorded(record, way)
    begin = recorder.begin

    def begin_and_be_interrupted(*given: Any, **named: Any) -> Any:
        begin(*given, **named)
        signal.raise_signal(signal.SIGALRM)

    with monkeypatch.context() as patched:
        patched.setattr(compiled, "crossing", None)  # the boundary itself begins its calls, as all do in Python 3.11
        patched.setattr(recorder, "begin", begin_and_be_interrupted)
        cut_short = boundary.wrap(lambda: None, "cut_short")

    def with_one_cut_short() -> None:
        with pytest.raises(Interrupted):
            cut_short()
        inner()

    inner, outer = boundary.wrap(lambda: None, "inner"), boundary.wrap(with_one_cut_short, "outer")
    with interrupts():
        for _ in range(3):
            outer()
            with pytest.raises(Interrupted):
                cut_short()
    inner()
    assert parents(found) == {"outer": {""}, "cut_short": {"outer", ""}, "inner": {"outer", ""}}


@pytest.mark.parametrize("way", WAYS)
def test_at_any_moment(record: Record, in_c: None, way: str) -> None:
    found = recorded(record, way)
    inner = boundary.wrap(lambda: None, "inner")
    outer: Callable[[], None] = boundary.wrap(lambda: inner(), "outer")
    moments, cut_short = random.Random(7), 0
    for _ in range(200):
        try:
            with interrupts():
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(5e-5, 3e-4))
                while True:
                    outer()
        except Interrupted:
            cut_short += 1
        assert recorder._current is None or not recorder._current.threads.current.busy
        outer()
    assert cut_short == 200
    assert parents(found) == {"outer": {""}, "inner": {"outer"}}
