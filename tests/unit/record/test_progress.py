from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record import progress


def page(*slots: tuple[int, int, int]) -> bytearray:
    data = bytearray(progress.PAGE_BYTES)
    header = progress.header(42, 7, "/recording/vm-42", len(slots))
    data[: len(header)] = header
    for index, (device, kind, handle) in enumerate(slots):
        offset = progress.slot_offset(index)
        taken = progress.slot(device, kind, handle)
        data[offset : offset + len(taken)] = taken
    return data


def test_what_is_written_is_read() -> None:
    data = page((0, progress.STREAM, 0), (1, progress.STREAM, 0x55), (0, progress.GRAPH, 3))
    offset = progress.slot_offset(1)
    data[offset + progress.ENQUEUED_OFFSET : offset + progress.ENQUEUED_OFFSET + 8] = (200).to_bytes(8, "little")
    data[offset + progress.REACHED_OFFSET : offset + progress.REACHED_OFFSET + 4] = (73).to_bytes(4, "little")
    read = progress.parse(bytes(data))
    assert (read.pid, read.started, read.folder) == (42, 7, "/recording/vm-42")
    assert read.slots[1] == progress.Slot(1, progress.STREAM, 0x55, 200, 73)
    assert not read.slots[1].caught_up
    assert read.slots[0].caught_up


def test_the_slots_fit_the_page() -> None:
    assert progress.slot_offset(progress.SLOTS) <= progress.PAGE_BYTES
    assert progress.parse(bytes(page(*[(0, 1, number) for number in range(progress.SLOTS)]))).slots[-1].handle > 0


@given(call=st.integers(1, 2**40), behind=st.integers(0, 2**30), ended=st.booleans(), ahead_ended=st.booleans())
def test_a_wrapped_word_finds_its_call(call: int, behind: int, ended: bool, ahead_ended: bool) -> None:
    marker = progress.end_marker(call) if ended else progress.begin_marker(call)
    enqueued = max(marker, progress.begin_marker(call + behind) + ahead_ended)
    assert progress.call_of(marker % 2**32, enqueued) == (call, "end" if ended else "begin")


@given(st.integers(0, progress.PAGE_BYTES))
def test_a_page_cut_short_gives_its_whole_slots(length: int) -> None:
    data = bytes(page((0, 1, 0), (0, 1, 1)))[:length]
    if length < 32:
        with pytest.raises(progress.NotAPage):
            progress.parse(data)
    else:
        whole = max(0, (length - progress.HEADER_BYTES) // progress.SLOT_BYTES)
        assert len(progress.parse(data).slots) == min(2, whole)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(progress.NotAPage):
        progress.parse(data)


@given(st.binary(max_size=progress.PAGE_BYTES))
def test_a_damaged_page_is_read_without_trust(rest: bytes) -> None:
    for slot in progress.parse(progress.MAGIC + rest.ljust(56, b"\0")).slots:
        assert slot.reached < 2**32
