from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record import statistics_page
from firstfault.record.statistics_page import (
    ENTRIES,
    FLOATING,
    INTEGER,
    PAGE_BYTES,
    RESULT_OFFSET,
    UNSIGNED_64,
    Statistics,
    Values,
)

NUMBERS = st.floats(allow_nan=False)
Written = tuple[float, float, float, int, int]


def page(**header: int) -> memoryview:
    data = bytearray(PAGE_BYTES)
    first = statistics_page.header(header.get("pid", 42), 7, "/recording/vm-42")
    data[: len(first)] = first
    return memoryview(data)


def complete(view: memoryview, slot: int, token: int, values: Values, result: Written, side: str = "inputs") -> None:
    statistics_page.write_entry(view, slot, token, 9, side, 3, values)
    at = statistics_page.entry_offset(slot) + RESULT_OFFSET
    statistics_page.write_result(view, at, min(values.number, UNSIGNED_64), result, token)


def understood(values: Values, result: Written) -> Statistics:
    view = memoryview(bytearray(64))
    statistics_page.write_result(view, 0, values.number, result, 1)
    return statistics_page.read_result(view, 0, values)


@given(st.lists(st.floats(), min_size=1, max_size=20), st.integers(1, 1000))
def test_what_the_device_writes_of_floats_is_understood(values: list[float], times: int) -> None:
    known = [value for value in values if not math.isnan(value)]
    low, high = (min(known), max(known)) if known else (math.inf, -math.inf)
    total = sum(known)
    infinite = sum(map(math.isinf, known))
    found = understood(Values(FLOATING, len(values), times), (low, high, total, len(known), infinite))
    nans = len(values) - len(known)
    mean = math.nan if nans else total / len(values)
    expected = [(found.min, low if known else math.nan), (found.max, high if known else math.nan), (found.mean, mean)]
    for seen, wanted in expected:
        assert seen == (wanted if math.isfinite(wanted) else str(wanted))
    assert (found.nan_count, found.inf_count) == (nans * times, infinite * times)


@pytest.mark.parametrize(("number", "moved"), [(INTEGER, 0), (UNSIGNED_64, 2**63)])
def test_integers_are_exact(number: int, moved: int) -> None:
    found = understood(Values(number, 4), (-(2**63), 2**63 - 1, 10.0, 0, 0))
    assert found == Statistics(-(2**63) + moved, 2**63 - 1 + moved, 2.5)


@given(st.lists(st.tuples(st.integers(0, ENTRIES - 1), NUMBERS, st.sampled_from(["inputs", "outputs"])), max_size=8))
def test_what_is_written_is_read(written: list[tuple[int, float, str]]) -> None:
    view = page()
    latest = {}
    for token, (slot, value, side) in enumerate(written, 1):
        complete(view, slot, token, Values(FLOATING, 5), (value, value, value, 5, 0), side)
        latest[slot] = token, value, side
    read = statistics_page.parse(view.tobytes())
    assert (read.pid, read.started, read.folder) == (42, 7, "/recording/vm-42")
    assert set(read.entries) == {token for token, _, _ in latest.values()}
    for token, value, side in latest.values():
        entry = read.entries[token]
        assert (entry.call, entry.side, entry.index) == (9, side, 3)
        assert entry.statistics is not None
        assert entry.statistics.min == (value if math.isfinite(value) else str(value))


def test_an_entry_counts_once_both_sides_have_its_token() -> None:
    view = page()
    values, done = Values(FLOATING, 1), (1.0, 1.0, 1.0, 1, 0)
    statistics_page.write_entry(view, 0, 17, 9, "inputs", 0, values)
    assert statistics_page.parse(view.tobytes()).entries == {}
    assert not statistics_page.complete(view, 0, 1)
    complete(view, 0, 17, values, done)
    assert statistics_page.complete(view, 0, 2)
    assert set(statistics_page.parse(view.tobytes()).entries) == {17}
    statistics_page.write_entry(view, 0, 18, 10, "inputs", 0, values)  # used again, and not reached
    assert statistics_page.parse(view.tobytes()).entries == {}


@given(st.integers(0, PAGE_BYTES))
def test_a_page_cut_short_gives_its_whole_entries(length: int) -> None:
    view = page()
    for slot in (0, 1, ENTRIES - 1):
        complete(view, slot, slot + 1, Values(INTEGER, 1), (4, 4, 4.0, 0, 0))
    data = view.tobytes()[:length]
    if length < 32:
        with pytest.raises(statistics_page.NotAPage):
            statistics_page.parse(data)
    else:
        ends = {slot + 1: statistics_page.entry_offset(slot + 1) for slot in (0, 1, ENTRIES - 1)}
        assert set(statistics_page.parse(data).entries) == {token for token, end in ends.items() if end <= length}


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(statistics_page.NotAPage):
        statistics_page.parse(data)


@given(st.binary(max_size=1024), st.integers(0, 15))
def test_a_damaged_page_is_read_without_trust(rest: bytes, at: int) -> None:
    data = bytearray(page().tobytes())
    begin = statistics_page.entry_offset(0) + at
    data[begin : begin + len(rest)] = rest
    for entry in statistics_page.parse(bytes(data)).entries.values():
        assert entry.side in ("inputs", "outputs")
        counts = entry.statistics[3:] if entry.statistics is not None else ()
        assert all(count is None or count >= 0 for count in counts)


@pytest.mark.parametrize(
    ("values", "known"),
    [(Values(3, 5), 5), (Values(FLOATING, 5, 0), 5), (Values(FLOATING, 5), 6)],
)
def test_an_entry_that_cannot_be_is_left_out(values: Values, known: int) -> None:
    view = page()
    complete(view, 0, 1, values, (0, 0, 0.0, known, 0))
    assert statistics_page.parse(view.tobytes()).entries == {}


def test_an_entry_of_no_values_is_of_a_tensor_that_was_freed() -> None:
    view = page()
    complete(view, 0, 1, Values(FLOATING, 0), (0, 0, 0.0, 0, 0))
    entry = statistics_page.parse(view.tobytes()).entries[1]
    assert (entry.call, entry.statistics) == (9, None)
