"""Records → calls: what became of each, where each thread stands, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read import calls
from firstfault.read.calls import LAST_CALLS, MOST_OPEN, MOST_THREADS, History, Process, State
from firstfault.read.events import MOST_PROBLEMS, Event, Problems
from firstfault.record import schema
from tests.unit.read.samples import MAIN_TID, call, header, raised, returned, tensor


def taken(records: Iterable[schema.Record]) -> Process:
    history = History()
    for record in records:
        history.feed(Event("main", record))
    return history.processes["main"]


def in_flight(process: Process) -> list[str]:
    return [found.op for found in process.in_flight()]


def blamed(process: Process) -> str:
    found = process.raised()
    return f"{found.op}: {found.exception}" if found is not None else ""


def test_the_innermost_call_is_in_flight() -> None:
    process = taken([call(1, "outer"), call(2, "inner", parent=1), call(3, "innermost", parent=2), returned(3)])
    assert in_flight(process) == ["inner"]
    assert [open_call.op for open_call in process.threads[MAIN_TID].open] == ["outer", "inner"]


def test_each_thread_is_in_its_own_call_the_one_begun_last_first() -> None:
    process = taken(
        [call(1, "a", tid=1), call(2, "b", tid=2), call(3, "c", tid=1, parent=1), call(4, "d", tid=3), returned(4)]
    )
    assert in_flight(process) == ["c", "b"]


def test_an_exception_is_of_the_innermost_call_that_it_left() -> None:
    story: list[schema.Record] = [call(1, "outer"), call(2, "inner", parent=1), raised(2), raised(1)]
    process = taken(story)
    assert blamed(process) == "inner: ValueError"
    passed = process.threads[MAIN_TID].passed
    assert passed is not None
    assert passed.op == "outer"


def test_an_exception_that_was_turned_into_another_began_in_the_innermost() -> None:
    process = taken([call(1, "outer"), call(2, "inner", parent=1), raised(2, "CudaError"), raised(1, "EngineError")])
    assert blamed(process) == "inner: CudaError"
    passed = process.threads[MAIN_TID].passed
    assert passed is not None
    assert passed.exception == "EngineError"


@pytest.mark.parametrize("after", [
    [call(3, "next")],
    [call(3, "next"), returned(3)],
    [returned(1)],
    [call(3, "fallback", parent=1), returned(3), returned(1)],
])  # fmt: skip
def test_an_exception_after_which_the_thread_went_on_is_nobodys_end(after: list[schema.Record]) -> None:
    assert blamed(taken([call(1, "outer"), call(2, "inner", parent=1), raised(2), *after])) == ""


def test_the_last_of_several_exceptions_counts() -> None:
    process = taken([call(1, "try"), raised(1), call(2, "try again"), raised(2)])
    assert blamed(process) == "try again: ValueError"


def test_what_other_threads_did_meanwhile_changes_nothing() -> None:
    process = taken([call(1, "a", tid=1), schema.Raise(1, 0, "E", "m", 1), call(2, "b", tid=2), returned(2)])
    assert blamed(process) == "a: E"


@pytest.mark.parametrize(("exception", "message", "fault"), [
    ("SystemExit", "0", False), ("SystemExit", "", False), ("SystemExit", "None", False), ("SystemExit", "1", True),
    ("SystemExit", "out of memory", True), ("GeneratorExit", "", False), ("StopIteration", "", False),
    ("CancelledError", "", False), ("KeyboardInterrupt", "", True), ("MyBaseException", "x", True),
])  # fmt: skip
def test_exceptions_that_end_a_call_as_it_was_meant(exception: str, message: str, fault: bool) -> None:
    process = taken(
        [call(1, "outer"), call(2, "op", parent=1), raised(2, exception, message), raised(1, exception, message)]
    )
    assert blamed(process) == (f"op: {exception}" if fault else "")
    assert in_flight(process) == []
    assert [ended.state for ended in process.threads[MAIN_TID].last] == [State.RAISED, State.RAISED]


def test_a_call_whose_return_was_lost_ended_when_the_one_around_it_did() -> None:
    process = taken([call(1, "outer"), call(2, "lost", parent=1), returned(1)])
    assert in_flight(process) == []
    assert [ended.op for ended in process.threads[MAIN_TID].last] == ["outer"]


def test_a_call_whose_return_was_lost_ended_when_the_next_began_beside_it() -> None:
    process = taken([call(1, "outer"), call(2, "lost", parent=1), call(3, "next", parent=1)])
    assert in_flight(process) == ["next"]
    assert [open_call.op for open_call in process.threads[MAIN_TID].open] == ["outer", "next"]
    assert in_flight(taken([call(1, "lost"), call(2, "next")])) == ["next"]


def test_a_parent_that_is_not_known_ends_nothing() -> None:
    """As in a ring of segments whose oldest are gone."""
    process = taken([call(8, "a", parent=7), call(9, "b", parent=8), call(12, "c", parent=11)])
    assert [open_call.op for open_call in process.threads[MAIN_TID].open] == ["a", "b", "c"]


@pytest.mark.parametrize("record", [returned(7), raised(7), schema.Dump(7, "inputs", "x"), schema.Inputs(7, [])])
def test_records_of_no_open_call_are_passed_over(record: schema.Record) -> None:
    process = taken([call(1, "op"), record])
    assert in_flight(process) == ["op"]


def test_a_number_given_twice_does_no_harm() -> None:
    process = taken(
        [call(5, "a"), call(5, "b", parent=5), call(5, "c", parent=5), returned(5), returned(5), call(6, "d")]
    )
    assert in_flight(process) == ["d"]


def test_dumps_notes_and_the_end() -> None:
    process = taken([
        header(), call(1, "a"), schema.Dump(1, "inputs", "dumps/a"), returned(1), call(2, "b"),
        schema.Dump(2, "inputs", skipped="too large"), schema.Note(0, "gap", "not seen", count=3), schema.End(0, 2),
    ])  # fmt: skip
    assert process.threads[MAIN_TID].last[0].dump == "dumps/a"
    assert process.in_flight()[0].dump_skipped == "too large"
    assert process.dumps_skipped == {"too large": 1}
    assert process.notes["gap"].count == 3
    assert process.end is not None
    assert process.header is not None


def test_whether_ends_are_recorded() -> None:
    bare = schema.Call(1, 0, "op")
    assert not taken([bare]).ends_recorded
    assert not taken([bare, raised(1)]).ends_recorded  # SGLang's log has exceptions at level 1 too
    assert taken([header(level=1), bare]).ends_recorded
    assert taken([bare, returned(1)]).ends_recorded
    assert taken([call(1, "op")]).ends_recorded


def test_only_the_last_calls_are_listed_and_of_the_last_values_all_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_VALUES", 3 * 3 + 1)  # a call, its argument and its result
    records: list[schema.Record] = []
    for n in range(1, 100):
        records += [call(n, f"op{n}", tensor(4)), returned(n, tensor(4))]
    process = taken(records)
    last = process.threads[MAIN_TID].last
    assert [ended.op for ended in last] == [f"op{n}" for n in range(100 - LAST_CALLS, 100)]
    assert [ended.record.args is None for ended in last] == [True] * (LAST_CALLS - 3) + [False] * 3
    assert [*process.recent] == [97, 98, 99]
    assert process.find(96) is None


def test_a_long_text_takes_the_place_of_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_VALUES", 1000)
    records: list[schema.Record] = []
    for n in range(1, 20):
        records += [call(n, "op", "x" * 100_000, schema.Sequence("list", 500, [1] * 500)), returned(n)]
    assert [*taken(records).recent] == [19]


def test_a_call_that_raised_keeps_its_arguments() -> None:
    process = taken([call(1, "outer", 1), call(2, "inner", tensor(4), parent=1), raised(2), raised(1)])
    found = process.raised()
    assert found is not None
    assert found.record.args == [tensor(4)]


def test_nesting_without_end_is_bounded() -> None:
    process = taken(call(n, "op", parent=n - 1) for n in range(1, 3 * MOST_OPEN))
    assert len(process.threads[MAIN_TID].open) == MOST_OPEN
    assert len(process.by_number) == MOST_OPEN
    assert process.in_flight()[0].n == 3 * MOST_OPEN - 1


def test_threads_without_end_are_bounded_and_those_in_a_call_stay() -> None:
    records: list[schema.Record] = [call(1, "stays", tid=1)]
    for n in range(2, 3 * MOST_THREADS):
        records += [call(n, "passes", tid=n), returned(n)]
    process = taken(records)
    assert len(process.threads) <= MOST_THREADS
    assert in_flight(process) == ["stays"]
    busy = taken(call(n, "op", tid=n) for n in range(1, 3 * MOST_THREADS))
    assert len(busy.threads) <= MOST_THREADS
    assert len(busy.by_number) <= MOST_THREADS


def test_reasons_and_notes_of_any_number_are_bounded() -> None:
    records: list[schema.Record] = [call(1, "op")]
    for n in range(10_000):
        records += [schema.Dump(1, "inputs", skipped=f"{n} bytes"), schema.Note(0, f"code{n}", "x")]
    process = taken(records)
    assert len(process.dumps_skipped) < 100
    assert len(process.notes) < 100


def test_problems_of_any_number_are_bounded() -> None:
    problems = Problems()
    for n in range(1000):
        problems.add(f"line {n % 500}")
    assert len(problems.lines()) == MOST_PROBLEMS + 1
    assert problems.lines()[0] == "line 0 (2 times)"
    assert problems.lines()[-1] == "800 more problems"


STEPS = st.lists(
    st.tuples(st.sampled_from(["call", "return", "raise"]), st.integers(1, 3), st.integers(0, 20)), max_size=60
)


@given(STEPS)
def test_any_order_of_records_keeps_the_books_straight(steps: list[tuple[str, int, int]]) -> None:
    records: list[schema.Record] = []
    for count, (kind, tid, n) in enumerate(steps, 1):
        if kind == "call":
            records.append(call(count, "op", tid=tid, parent=n))
        else:
            records.append(returned(n) if kind == "return" else raised(n))
    process = taken([header(), *records])
    open_calls = [open_call for thread in process.threads.values() for open_call in thread.open]
    assert sorted(process.by_number) == sorted(open_call.n for open_call in open_calls)
    assert all(process.by_number[open_call.n] is open_call for open_call in open_calls)
    assert all(open_call.state is State.IN_FLIGHT for open_call in open_calls)
    for thread in process.threads.values():
        assert all(ended.state in (State.RETURNED, State.RAISED) for ended in thread.last)
        if thread.raised is not None:
            assert thread.raised.state is State.RAISED
