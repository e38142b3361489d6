from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstfault.read.events import Problems
from firstfault.read.formats import statistics_page as pages
from firstfault.read.formats.recording import Deferred, Recording
from firstfault.record import codec, layout, schema, statistics_page
from firstfault.record.statistics_page import FLOATING, PAGE_BYTES, RESULT_OFFSET, Result, Values, key
from tests.unit.read.test_marker_page import dead_pid

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
        statistics_page.write_result(view, at, Result(key(value), key(value), value, 1, 0, token))
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
    return [event.record for event in Recording(folder.parent).events(lambda count: None)]


def test_records_of_statistics_are_joined_in_order(folder: Path) -> None:
    header, *rest = records(11, 12)
    first = schema.Statistics([schema.Reading(11, -1.0, 2.0, 0.5, 0, 0)])
    second = schema.Statistics([schema.Reading(12, 3.0, 3.0, "nan", 4, 0)])
    write(folder, header, *rest, first, second)
    found = read(folder)
    assert [type(record).__name__ for record in found] == ["Header", "Call", "Return", "Call", "Return"]
    one, two = arguments(found)
    assert (one.statistics, one.token, one.min, one.max, one.mean) == (None, 0, -1.0, 2.0, 0.5)
    assert (two.mean, two.nan_count) == ("nan", 4)


def test_nothing_is_held_longer_than_it_has_to_be(folder: Path) -> None:
    deferred = Deferred(folder)
    header, call, returned, later, *_ = records(11, 12)
    assert list(deferred.joined([header, call, returned])) == [header]
    read_later = schema.Statistics([schema.Reading(11, 1.0, 1.0, 1.0)])
    assert list(deferred.joined([later, read_later])) == [call, returned]
    assert list(deferred.rest()) == [later]


def test_what_a_dead_process_left_in_its_page_is_joined(folder: Path) -> None:
    write(folder, *records(11, 12))
    layout.statistics_page(folder).write_bytes(page(dead_pid(), (11, 5.0)))
    pages.collect(folder.parent)
    assert not layout.statistics_page(folder).exists()
    assert (folder / layout.STATISTICS).stat().st_mode & 0o777 == layout.PRIVATE_FILE
    one, two = arguments(read(folder))
    assert (one.statistics, one.max, one.nan_count) == (None, 5.0, 0)
    assert (two.statistics, two.max) == (PENDING, None)


def test_a_living_process_keeps_its_page(folder: Path) -> None:
    write(folder, *records(11))
    layout.statistics_page(folder).write_bytes(page(os.getpid(), (11, 5.0)))
    pages.collect(folder.parent)
    assert layout.statistics_page(folder).exists()
    assert [tensor.max for tensor in arguments(read(folder))] == [5.0]
    (turn,) = [events for _, events in zip(range(1), Recording(folder.parent).follow(), strict=False)]
    assert [tensor.max for tensor in arguments([event.record for event in turn])] == [5.0]


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
    write(
        folder, header, call, schema.Inputs(1, [read_now, pending(7)]), schema.Statistics([schema.Reading(7, 2, 3, 2)])
    )
    one, two = arguments(read(folder))
    assert (one.min, two.max) == (1.0, 3)


def test_too_many_records_are_not_held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstfault.read.formats.recording.MOST_HELD", 4)
    deferred = Deferred(folder)
    given = records(1, 2, 3)
    assert list(deferred.joined(given)) == given[:3]
    assert not Problems().lines()
