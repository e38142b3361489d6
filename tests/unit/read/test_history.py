"""Records → calls: what became of each, and what belongs to none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.calls import State
from firstfault.record import schema
from tests.unit.read.samples import MAIN_TID, call, header, raised, returned, taken
from tests.unit.read.test_process import in_flight


@pytest.mark.parametrize("record", [returned(7), raised(7), schema.Dump(7, "inputs", "x"), schema.Inputs(7, [])])
def test_records_of_no_open_call_are_passed_over(record: schema.Record) -> None:
    process = taken(call(1, "op"), record)
    assert in_flight(process) == ["op"]


def test_a_number_given_twice_does_no_harm() -> None:
    process = taken(
        call(5, "a"), call(5, "b", parent=5), call(5, "c", parent=5), returned(5), returned(5), call(6, "d")
    )
    assert in_flight(process) == ["d"]


def test_dumps_notes_and_the_end() -> None:
    process = taken(
        header(), call(1, "a"), schema.Dump(1, "inputs", "dumps/a"), returned(1), call(2, "b"),
        schema.Dump(2, "inputs", skipped="too large"), schema.Note(0, "gap", "not seen", count=3), schema.End(0, 2),
    )  # fmt: skip
    assert process.threads[MAIN_TID].last[0].dump == "dumps/a"
    assert process.in_flight()[0].dump_skipped == "too large"
    assert process.dumps_skipped == {"too large": 1}
    assert process.notes["gap"].count == 3
    assert process.end is not None
    assert process.header is not None


def test_reasons_and_notes_of_any_number_are_bounded() -> None:
    records: list[schema.Record] = [call(1, "op")]
    for n in range(10_000):
        records += [schema.Dump(1, "inputs", skipped=f"{n} bytes"), schema.Note(0, f"code{n}", "x")]
    process = taken(*records)
    assert len(process.dumps_skipped) < 100
    assert len(process.notes) < 100


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
    process = taken(header(), *records)
    open_calls = [open_call for thread in process.threads.values() for open_call in thread.open]
    assert sorted(process.by_number) == sorted(open_call.n for open_call in open_calls)
    assert all(process.by_number[open_call.n] is open_call for open_call in open_calls)
    assert all(open_call.state is State.IN_FLIGHT for open_call in open_calls)
    for thread in process.threads.values():
        assert all(ended.state in (State.RETURNED, State.RAISED) for ended in thread.last)
        if thread.raised is not None:
            assert thread.raised.state is State.RAISED
