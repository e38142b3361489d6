from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstfault.read.events import Replayed
from firstfault.read.formats import statistics_page as pages
from firstfault.read.formats.recording import Recording
from firstfault.record import codec, layout, schema, statistics_page
from firstfault.record.statistics_page import ENTRY_BYTES, FLOATING, HEADER_BYTES, PAGE_BYTES, RESULT_OFFSET, Values
from tests.unit.record.test_marker_files import dead_pid

PENDING = "[pending: the device has not got there]"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a process whose page lies in shared memory."""
    made = tmp_path / "recording" / "vm-42"
    made.mkdir(parents=True)
    yield made
    layout.statistics_page(made).unlink(missing_ok=True)


def page(pid: int, *entries: tuple[int, float]) -> bytes:
    """A page with entries for tokens, each of one value."""
    data = bytearray(PAGE_BYTES)
    header = statistics_page.header(pid, 7, "/recording/vm-42")
    data[: len(header)] = header
    view = memoryview(data)
    for slot, (token, value) in enumerate(entries):
        statistics_page.write_entry(view, slot, token, 1, "inputs", 0, Values(FLOATING, 1))
        at = statistics_page.entry_offset(slot) + RESULT_OFFSET
        statistics_page.write_result(view, at, FLOATING, (value, value, value, 1, 0), token)
    return bytes(data)


def pending(token: int) -> schema.Tensor:
    return schema.Tensor((1,), "torch.float32", "cuda:0", statistics=PENDING, token=token)


def records(*tokens: int) -> list[schema.Record]:
    """A call a token with that as its argument, each followed by its return."""
    made: list[schema.Record] = [schema.Header(1, 0, 42, "vm", "0", 5, 1, deferred=True)]
    for n, token in enumerate(tokens, 1):
        made += [schema.Call(n, n, "op", args=[pending(token)], kwargs={}), schema.Return(n, n, described=True)]
    return made


def write(folder: Path, *lines: schema.Record) -> None:
    layout.segment(folder, 1).write_bytes(b"".join(map(codec.encode, lines)))


def arguments(found: list[schema.Record]) -> list[schema.Tensor]:
    calls = [record for record in found if isinstance(record, schema.Call)]
    return [tensor for call in calls for tensor in call.args or () if isinstance(tensor, schema.Tensor)]


def read(folder: Path) -> list[schema.Record]:
    return [
        event.record
        for event in Recording(folder.parent).events(lambda count: None)
        if not isinstance(event.record, Replayed)
    ]


def keep(folder: Path, *entries: tuple[int, float]) -> None:
    """Leave entries in the file of the recording, behind those that it has."""
    path = folder / layout.STATISTICS
    data = page(1, *entries)[: HEADER_BYTES + len(entries) * ENTRY_BYTES]
    with path.open("ab") as file:
        file.write(data[HEADER_BYTES:] if path.stat().st_size else data)


def test_entries_in_the_recording_are_joined_with_their_records(folder: Path) -> None:
    write(folder, *records(11, 12))
    keep(folder, (11, 5.0))
    keep(folder, (12, math.nan))
    found = read(folder)
    assert [type(record).__name__ for record in found] == ["Header", "Call", "Return", "Call", "Return"]
    one, two = arguments(found)
    assert (one.statistics, one.token, one.min, one.max, one.mean) == (None, 0, 5.0, 5.0, 5.0)
    assert (two.max, two.mean) == ("nan", "nan")


def test_a_long_file_is_read_piece_by_piece(folder: Path) -> None:
    write(folder, *records(1, 4096, 4097, 9000, 8990, 20_000, 20_001))
    for first in range(1, 20_001, 4000):
        keep(folder, *((token, float(token)) for token in range(first, first + 4000)))
    assert [tensor.max for tensor in arguments(read(folder))] == [1.0, 4096.0, 4097.0, 9000.0, 8990.0, 20_000.0, None]


def test_a_torn_entry_is_left_out(folder: Path) -> None:
    write(folder, *records(11, 12))
    keep(folder, (11, 5.0), (12, 6.0))
    os.truncate(folder / layout.STATISTICS, HEADER_BYTES + 2 * ENTRY_BYTES - 1)
    assert [tensor.max for tensor in arguments(read(folder))] == [5.0, None]


def test_what_a_dead_process_left_in_its_page_is_joined(folder: Path) -> None:
    write(folder, *records(11, 12))
    layout.statistics_page(folder).write_bytes(page(dead_pid(), (11, 5.0)))
    pages.collect(folder.parent)
    assert not layout.statistics_page(folder).exists()
    assert (folder / layout.STATISTICS).stat().st_mode & 0o777 == layout.PRIVATE_FILE
    one, two = arguments(read(folder))
    assert (one.statistics, one.max, one.nan_count) == (None, 5.0, 0)
    assert (two.statistics, two.max) == (PENDING, None)


def test_the_page_of_a_dead_process_comes_behind_what_is_kept(folder: Path) -> None:
    write(folder, *records(1, 2, 3))
    keep(folder, (1, 1.0))
    layout.statistics_page(folder).write_bytes(page(dead_pid(), (3, 3.0), (2, 2.0)))
    pages.collect(folder.parent)
    assert (folder / layout.STATISTICS).stat().st_size == HEADER_BYTES + 3 * ENTRY_BYTES
    assert [tensor.max for tensor in arguments(read(folder))] == [1.0, 2.0, 3.0]


def test_a_living_process_keeps_its_page(folder: Path) -> None:
    write(folder, *records(11))
    layout.statistics_page(folder).write_bytes(page(os.getpid(), (11, 5.0)))
    pages.collect(folder.parent)
    assert layout.statistics_page(folder).exists()
    assert [tensor.max for tensor in arguments(read(folder))] == [5.0]
    turn = next(Recording(folder.parent).follow())
    assert [
        tensor.max for tensor in arguments([event.record for event in turn if not isinstance(event.record, Replayed)])
    ] == [5.0]


@pytest.mark.parametrize("data", [b"", b"something else", b"FFSTAT1\0", page(1)[:1000]])
def test_what_is_no_page_is_passed_over(folder: Path, data: bytes) -> None:
    write(folder, *records(11))
    (folder / layout.STATISTICS).write_bytes(data)
    assert [tensor.statistics for tensor in arguments(read(folder))] == [PENDING]


def test_a_call_with_tensors_on_the_host_waits_for_its_arguments(folder: Path) -> None:
    header, *_ = records()
    host = schema.Tensor((1,), "torch.float32", "cpu")
    read_now = schema.Tensor((1,), "torch.float32", "cpu", min=1.0, max=1.0, mean=1.0)
    call = schema.Call(1, 1, "op", args=[host], kwargs={})
    write(folder, header, call, schema.Inputs(1, [read_now, pending(7)]))
    keep(folder, (7, 3.0))
    one, two = arguments(read(folder))
    assert (one.min, two.max) == (1.0, 3.0)
