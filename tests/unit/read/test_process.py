"""Where each thread stands, and what is kept of the calls, in bounded memory."""

from __future__ import annotations

import pytest

from firstfault.read.process import LAST_CALLS, MOST_OPEN, MOST_THREADS, Process
from firstfault.record import schema
from tests.unit.read.samples import MAIN_TID, call, header, raised, returned, taken, tensor


def in_flight(process: Process) -> list[str]:
    return [found.op for found in process.in_flight()]


def blamed(process: Process) -> str:
    found = process.raised()
    return f"{found.op}: {found.exception}" if found is not None else ""


def test_the_innermost_call_is_in_flight() -> None:
    process = taken(call(1, "outer"), call(2, "inner", parent=1), call(3, "innermost", parent=2), returned(3))
    assert in_flight(process) == ["inner"]
    assert [open_call.op for open_call in process.threads[MAIN_TID].open] == ["outer", "inner"]


def test_each_thread_is_in_its_own_call_the_one_begun_last_first() -> None:
    process = taken(
        call(1, "a", tid=1), call(2, "b", tid=2), call(3, "c", tid=1, parent=1), call(4, "d", tid=3), returned(4)
    )
    assert in_flight(process) == ["c", "b"]


def test_an_exception_is_of_the_innermost_call_that_it_left() -> None:
    story: list[schema.Record] = [call(1, "outer"), call(2, "inner", parent=1), raised(2), raised(1)]
    process = taken(*story)
    assert blamed(process) == "inner: ValueError"
    passed = process.threads[MAIN_TID].passed
    assert passed is not None
    assert passed.op == "outer"


def test_an_exception_that_was_turned_into_another_began_in_the_innermost() -> None:
    process = taken(call(1, "outer"), call(2, "inner", parent=1), raised(2, "CudaError"), raised(1, "EngineError"))
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
    assert blamed(taken(call(1, "outer"), call(2, "inner", parent=1), raised(2), *after)) == ""


def test_the_last_of_several_exceptions_counts() -> None:
    process = taken(call(1, "try"), raised(1), call(2, "try again"), raised(2))
    assert blamed(process) == "try again: ValueError"


def test_what_other_threads_did_meanwhile_changes_nothing() -> None:
    process = taken(call(1, "a", tid=1), schema.Raise(1, 0, "E", "m", 1), call(2, "b", tid=2), returned(2))
    assert blamed(process) == "a: E"


def test_a_call_whose_return_was_lost_ended_when_the_one_around_it_did() -> None:
    process = taken(call(1, "outer"), call(2, "lost", parent=1), returned(1))
    assert in_flight(process) == []
    assert [ended.op for ended in process.threads[MAIN_TID].last] == ["outer"]


def test_a_call_whose_return_was_lost_ended_when_the_next_began_beside_it() -> None:
    process = taken(call(1, "outer"), call(2, "lost", parent=1), call(3, "next", parent=1))
    assert in_flight(process) == ["next"]
    assert [open_call.op for open_call in process.threads[MAIN_TID].open] == ["outer", "next"]
    assert in_flight(taken(call(1, "lost"), call(2, "next"))) == ["next"]


def test_a_parent_that_is_not_known_ends_nothing() -> None:
    """As in a ring of segments whose oldest are gone."""
    process = taken(call(8, "a", parent=7), call(9, "b", parent=8), call(12, "c", parent=11))
    assert [open_call.op for open_call in process.threads[MAIN_TID].open] == ["a", "b", "c"]


def test_whether_ends_are_recorded() -> None:
    bare = schema.Call(1, 0, "op")
    assert not taken(bare).ends_recorded
    assert not taken(bare, raised(1)).ends_recorded  # SGLang's log has exceptions at level 1 too
    assert taken(header(level=1), bare).ends_recorded
    assert taken(bare, returned(1)).ends_recorded
    assert taken(call(1, "op")).ends_recorded


def test_only_the_last_calls_are_listed_and_of_the_last_values_all_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstfault.read.process.MOST_VALUES", 3 * 3 + 1)  # a call, its argument and its result
    records: list[schema.Record] = []
    for n in range(1, 100):
        records += [call(n, f"op{n}", tensor(4)), returned(n, tensor(4))]
    process = taken(*records)
    last = process.threads[MAIN_TID].last
    assert [ended.op for ended in last] == [f"op{n}" for n in range(100 - LAST_CALLS, 100)]
    assert [ended.record.args is None for ended in last] == [True] * (LAST_CALLS - 3) + [False] * 3
    assert [*process.recent] == [97, 98, 99]
    assert process.find(96) is None


def test_a_long_text_takes_the_place_of_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstfault.read.process.MOST_VALUES", 1000)
    records: list[schema.Record] = []
    for n in range(1, 20):
        records += [call(n, "op", "x" * 100_000, schema.Sequence("list", 500, [1] * 500)), returned(n)]
    assert [*taken(*records).recent] == [19]


def test_a_call_that_raised_keeps_its_arguments() -> None:
    process = taken(call(1, "outer", 1), call(2, "inner", tensor(4), parent=1), raised(2), raised(1))
    found = process.raised()
    assert found is not None
    assert found.record.args == [tensor(4)]


def test_nesting_without_end_is_bounded() -> None:
    process = taken(*(call(n, "op", parent=n - 1) for n in range(1, 3 * MOST_OPEN)))
    assert len(process.threads[MAIN_TID].open) == MOST_OPEN
    assert len(process.by_number) == MOST_OPEN
    assert process.in_flight()[0].n == 3 * MOST_OPEN - 1


def test_threads_without_end_are_bounded_and_those_in_a_call_stay() -> None:
    records: list[schema.Record] = [call(1, "stays", tid=1)]
    for n in range(2, 3 * MOST_THREADS):
        records += [call(n, "passes", tid=n), returned(n)]
    process = taken(*records)
    assert len(process.threads) <= MOST_THREADS
    assert in_flight(process) == ["stays"]
    busy = taken(*(call(n, "op", tid=n) for n in range(1, 3 * MOST_THREADS)))
    assert len(busy.threads) <= MOST_THREADS
    assert len(busy.by_number) <= MOST_THREADS
