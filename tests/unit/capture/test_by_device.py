"""Calls that C writes and whose tensors the device reads by itself, with a stand-in for the device: there is none here."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstfault.capture import (
    boundary,
    compiled,
    contracts,
    cuda,
    deferred_stats,
    device_stats,
    progress,
    recorder,
    stats,
)
from firstfault.capture.deferred_stats import FAR_BEHIND, PENDING, DeferredStatistics
from firstfault.capture.device_stats import Arguments, Kernel, Reader
from firstfault.record import layout, schema, statistics_page
from tests.conftest import Record
from tests.unit.capture.test_deferred_stats import SlowDevice
from tests.unit.capture.test_markers import FakeDriver
from tests.unit.capture.test_metadata import calls, read_back, returns
from tests.unit.recording import Recording

pytestmark = pytest.mark.skipif(compiled.crossing is None, reason="the C of crossing/ is not built")

_Launch = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
_Copy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_Wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Mode = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))


class ReadingDevice(SlowDevice):
    """A device whose memory is the host's, and whose driver C calls."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self._one_by_one = threading.Lock()
        self.waited = 0
        self.asked: list[tuple[int, ...]] = []
        """Of C's launches, the address of each tensor and how it is to be read."""
        self.copied = 0
        self.modes: list[int] = []
        self._functions = (_Launch(self._launch), _Copy(self._copy), _Wait(self._wait), _Mode(self._exchange))

    def addresses(self) -> tuple[int, int, int, int]:
        launch, copy, wait, mode = map(cuda.address, self._functions)
        return launch, copy, wait, mode

    def launch(self, kernel: Kernel, grid: tuple[int, int], stream: int, arguments: Arguments) -> bool:
        with self._one_by_one:
            done = super().launch(kernel, grid, stream, arguments)
            if not self.is_slow:
                self.catch_up()
        return done

    def wait(self, stream: int) -> bool:
        self.waited += 1
        self.catch_up()
        return True

    def _launch(self, function: int, *numbers: Any) -> int:
        parts, tensors, _, threads, _, _, shared, stream, pointers, _ = numbers
        assert threads == device_stats.THREADS
        requests, scratch = (ctypes.c_uint64.from_address(pointers[index]).value for index in range(2))
        for index in range(tensors):
            words = device_stats.REQUEST.unpack(ctypes.string_at(requests + index * device_stats.REQUEST.size, 128))
            self.asked.append(words[:14])
        kernel = Kernel(function, shared)
        return int(not self.launch(kernel, (parts, tensors), stream or 0, Arguments().set(requests, scratch)))

    def _copy(self, to: int, host: int, size: int, stream: int) -> int:
        self.copied += 1
        ctypes.memmove(to, host, size)
        return 0

    def _wait(self, stream: int) -> int:
        self.wait(stream)
        return 0

    def _exchange(self, mode: Any) -> int:
        self.modes.append(mode[0])
        mode[0] = 2 - mode[0]
        return 0


class Reads:
    """What is recorded of calls whose tensors the device reads."""

    def __init__(self, found: Recording, device: ReadingDevice, page: DeferredStatistics, markers: FakeDriver) -> None:
        self.found, self.device, self.page, self.markers = found, device, page, markers

    @property
    def here(self) -> int:
        """Sides of calls that C has written."""
        return self.box.here  # type: ignore[no-any-return]

    @property
    def box(self) -> Any:
        """The state of the recorder in C."""
        assert recorder._current is not None
        assert recorder._current.in_c is not None
        return recorder._current.in_c.box


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ReadingDevice:
    monkeypatch.setattr(deferred_stats, "lies_there", lambda tensor: True)
    monkeypatch.setattr(deferred_stats, "device_of", lambda tensor: 0)
    monkeypatch.setattr(deferred_stats, "SETTLE_SECONDS", 0.01)
    return ReadingDevice()


Open = Callable[..., Reads]


@pytest.fixture
def open_reads(record: Record, tmp_path: Path, device: ReadingDevice, monkeypatch: pytest.MonkeyPatch) -> Open:
    """What opens a recording at level 5 whose markers and statistics a stand-in writes down."""

    pages = itertools.count()

    def opened(level: int = 5, *, waits: bool = True, entries: int = statistics_page.ENTRIES, **chosen: Any) -> Reads:
        monkeypatch.setattr(deferred_stats, "_HALF", entries // 2)
        found = record(level, text_dest=None, asynchronous=not waits, **chosen)
        boundary.wrap(lambda: None, "first")()
        running = recorder._current
        assert running is not None
        (folder,) = found.folder.iterdir()
        markers = FakeDriver()
        running.use_markers(progress.Markers(tmp_path / f"page-{next(pages)}", folder, markers))
        reader = Reader(device)
        monkeypatch.setattr(reader, "most_parts", lambda place: 8)
        page = DeferredStatistics(folder, reader)
        if running.values is not None and running.in_c is not None:
            read_by(running.values, page, waits=waits)
        return Reads(found, device, page, markers)

    return opened


def read_by(values: Any, page: DeferredStatistics, *, waits: bool) -> None:
    values._defers, values._page, values._deferred = False, page, page
    values._in_c.read_by(page, waits=waits)


def told(value: Any) -> tuple[Any, ...]:
    assert isinstance(value, schema.Tensor)
    assert value.statistics is None
    return value.min, value.max, round(float(value.mean or 0), 4), value.nan_count, value.inf_count


def expected(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.min().item(), tensor.max().item(), round(tensor.double().mean().item(), 4), 0, 0


def boundary_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A boundary that is always called at one place."""
    act = boundary.wrap(function, "act", is_method=False)
    return lambda *args: act(*args)


def short(found: Recording) -> list[str]:
    """The lines that refer to a description."""
    files = sorted(found.folder.glob(f"*/{layout.SEGMENTS}"))
    return [line for path in files for line in path.read_text().splitlines() if '"storages"' in line]


@pytest.mark.parametrize("waits", [True, False])
def test_every_call_has_its_own_statistics(open_reads: Open, waits: bool) -> None:
    reads = open_reads(waits=waits)
    scale = boundary.wrap(lambda x, *, by: x * by, "scale", is_method=False)
    given = [torch.randn(3, 5) for _ in range(8)]
    gave = [scale(x, by=index) for index, x in enumerate(given)]
    assert reads.here >= 2 * 5
    assert all('"token":' in line for line in short(reads.found))
    of_scale = [call for call in calls(reads.found) if call.op == "scale"]
    assert [told((call.args or [])[0]) for call in of_scale] == list(map(expected, given))
    assert [told(each.out) for each in returns(reads.found)[1:]] == list(map(expected, gave))
    assert [call.token for call in of_scale] == [0] * 8


def test_what_is_read_while_the_call_waits_is_known_when_it_is_over(open_reads: Open) -> None:
    reads = open_reads(waits=True)
    reads.device.is_slow = True
    act = boundary_of(lambda x: None)
    for index in range(6):
        act(torch.full((4,), float(index)))
        assert told((calls(reads.found)[-1].args or [])[0])[0] == float(index)
    assert reads.device.waited == 6
    assert set(reads.device.modes) <= {0, 2}


def test_nothing_waits_for_a_device_that_is_behind(open_reads: Open) -> None:
    reads = open_reads(waits=False)
    act = boundary_of(lambda x: None)
    held = [torch.full((4,), float(index)) for index in range(6)]
    for x in held[:4]:
        act(x)
    reads.device.is_slow = True
    for x in held[4:]:
        act(x)
    assert reads.device.waited == 0
    pending = [(call.args or [])[0] for call in calls(reads.found)[-2:]]
    assert [each.statistics for each in pending if isinstance(each, schema.Tensor)] == [PENDING] * 2
    reads.device.catch_up()
    assert [told((call.args or [])[0])[0] for call in calls(reads.found)[1:]] == [float(k) for k in range(6)]


def test_the_call_is_written_down_before_the_device_is_told(open_reads: Open) -> None:
    reads = open_reads(waits=False)
    act = boundary_of(lambda x: None)
    x = torch.ones(4)
    for _ in range(3):
        act(x)
    seen: list[int] = []
    launch = reads.device.launch

    def looked(*args: Any) -> bool:
        seen.append(len([line for line in short(reads.found) if '"type":"call"' in line]))
        return launch(*args)

    reads.device.launch = looked  # type: ignore[method-assign, assignment]
    before = len([line for line in short(reads.found) if '"type":"call"' in line])
    act(x)
    assert seen == [before + 1]


def test_nan_and_infinity_are_counted(open_reads: Open) -> None:
    reads = open_reads()
    act = boundary_of(lambda x: None)
    for _ in range(4):
        act(torch.tensor([1.0, math.nan, math.inf, -2.0]))
    last = (calls(reads.found)[-1].args or [])[0]
    assert isinstance(last, schema.Tensor)
    assert (last.min, last.max, last.mean, last.nan_count, last.inf_count) == (-2.0, "inf", "nan", 1, 1)


def test_views_are_read_where_they_lie(open_reads: Open) -> None:
    reads = open_reads()
    act = boundary_of(lambda x: None)
    base = torch.arange(64.0)
    views = [base[start : start + 8] for start in (0, 4, 8, 12, 1, 2, 3, 16, 5)]  # of which some lie off 16 bytes
    views += [base.view(8, 8)[:, column] for column in range(8)]
    for view in views:
        act(view)
    assert [told((call.args or [])[0]) for call in calls(reads.found)[1:]] == list(map(expected, views))
    assert short(reads.found)


def test_storage_that_was_taken_away_is_not_read(open_reads: Open) -> None:
    reads = open_reads()
    act = boundary_of(lambda x: None)
    for _ in range(4):
        act(torch.ones(1024))
    shrunk = torch.ones(1024)
    shrunk.untyped_storage().resize_(64)
    launches = len(reads.device.launches)
    act(shrunk)
    assert len(reads.device.launches) == launches
    last = (calls(reads.found)[-1].args or [])[0]
    assert isinstance(last, schema.Tensor)
    assert last.statistics == stats.SHRUNK


def test_tensors_that_are_never_read_are_no_hindrance(open_reads: Open) -> None:
    reads = open_reads(statistics_max_bytes=1024)
    act = boundary_of(lambda *tensors: None)
    for index in range(5):
        act(torch.ones(0), torch.full((8,), float(index)), torch.ones(1000))
    empty, read, large = [call.args or [] for call in calls(reads.found)][-1]
    assert isinstance(empty, schema.Tensor)
    assert isinstance(large, schema.Tensor)
    assert (empty.statistics, large.statistics) == (stats.EMPTY, stats.too_large(1024))
    assert told(read)[0] == 4.0
    assert len(short(reads.found)) == 6


ON_HOST = [
    torch.tensor([7, -3, 250], dtype=dtype)
    for dtype in (torch.int16, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64)
] + [
    torch.tensor([1, 0, 255], dtype=torch.uint8),
    torch.tensor([True, False]),
    torch.tensor([-128, 127], dtype=torch.int8),
    torch.tensor([2**62, -(2**62)]),
    torch.tensor([math.nan, math.nan]),
    torch.tensor([math.nan, -math.inf, 2.0], dtype=torch.bfloat16),
    torch.tensor(3.5),
]


@pytest.mark.parametrize("tensor", ON_HOST, ids=str)
def test_small_tensors_on_the_host_are_read_by_c(
    open_reads: Open, monkeypatch: pytest.MonkeyPatch, tensor: torch.Tensor
) -> None:
    reads = open_reads()
    monkeypatch.setattr(deferred_stats, "lies_there", lambda each: each is not tensor)
    act = boundary_of(lambda x, y: None)
    for index in range(5):
        act(torch.full((8,), float(index)), tensor)
    found = [call.args or [] for call in calls(reads.found)[1:]]
    assert [told(there)[0] for there, _ in found] == [float(index) for index in range(5)]
    assert len(short(reads.found)) >= 4
    first, *others = [told(here) for _, here in found]
    assert repr(others) == repr([first] * 4)
    plain = stats.read(tensor, contiguous=True)
    assert not isinstance(plain, str)
    assert repr(first) == repr((*plain[:2], round(float(plain.mean or 0), 4), *plain[3:]))


def test_a_call_whose_tensors_all_lie_on_the_host(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = open_reads()
    monkeypatch.setattr(deferred_stats, "lies_there", lambda tensor: False)
    act = boundary_of(lambda x: None)
    for index in range(5):
        act(torch.full((8,), index))
    assert [told((call.args or [])[0])[0] for call in calls(reads.found)[1:]] == list(range(5))
    assert reads.device.launches == []
    assert len(short(reads.found)) >= 4


@pytest.mark.parametrize("tensor", [torch.ones(5000), torch.ones(4, 4).t()[1:], torch.ones(3, dtype=torch.float16)])
def test_what_python_reads_on_the_host_is_described_each_time(
    open_reads: Open, monkeypatch: pytest.MonkeyPatch, tensor: torch.Tensor
) -> None:
    reads = open_reads()
    monkeypatch.setattr(deferred_stats, "lies_there", lambda each: each is not tensor)
    act = boundary_of(lambda x, y: None)
    for index in range(5):
        tensor.fill_(index)
        act(torch.full((8,), float(index)), tensor)
    found = [call.args or [] for call in calls(reads.found)[1:]]
    assert [(told(there)[0], told(here)[0]) for there, here in found] == [(float(k), float(k)) for k in range(5)]
    assert not [line for line in short(reads.found) if '"type":"call"' in line]


def test_a_call_without_tensors_is_short_too(open_reads: Open) -> None:
    reads = open_reads()
    act = boundary_of(lambda x, y: x)
    for index in range(5):
        act(index, "auto")
    assert [call.args for call in calls(reads.found)[1:]] == [[index, "auto"] for index in range(5)]
    assert len(short(reads.found)) >= 4


def test_more_tensors_than_one_launch_takes(open_reads: Open) -> None:
    reads = open_reads()
    act = boundary_of(lambda *tensors: None)
    many = [torch.full((2,), float(index)) for index in range(100)]
    for _ in range(4):
        act(*many)
    assert {tensors for _, tensors in reads.device.launches} == {64, 36}
    assert [told(value)[0] for value in calls(reads.found)[-1].args or []] == [float(index) for index in range(100)]
    assert short(reads.found)


def test_requests_of_large_tensors_are_copied_to_the_device(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_stats, "MANY_PARTS", 0)
    reads = open_reads()
    act = boundary_of(lambda x: None)
    for index in range(5):
        act(torch.full((8,), float(index)))
    assert reads.device.copied >= 3
    assert [told((call.args or [])[0])[0] for call in calls(reads.found)[1:]] == [float(k) for k in range(5)]


@pytest.mark.parametrize("waits", [True, False])
def test_no_statistics_are_lost_however_often_the_page_is_used(open_reads: Open, waits: bool) -> None:
    reads = open_reads(waits=waits, entries=16)
    act = boundary_of(lambda *tensors: None)
    given = [[torch.full((2,), float(index + k)) for k in range(1 + index % 3)] for index in range(60)]
    for tensors in given:
        act(*tensors)
    found = [[told(value)[0] for value in call.args or []] for call in calls(reads.found)[1:]]
    assert found == [[float(tensor[0]) for tensor in tensors] for tensors in given]
    assert reads.here > 60


def test_a_page_that_is_full_is_not_waited_for(open_reads: Open) -> None:
    reads = open_reads(waits=False, entries=16)
    act = boundary_of(lambda x: None)
    held = [torch.ones(2) for _ in range(40)]
    reads.device.is_slow = True
    for x in held:
        act(x)
    found = [(call.args or [])[0] for call in calls(reads.found)[1:]]
    assert [each.statistics for each in found if isinstance(each, schema.Tensor)] == [PENDING] * 16 + [FAR_BEHIND] * 24
    reads.device.is_slow = False
    reads.device.catch_up()
    act(torch.full((2,), 5.0))
    assert told((calls(reads.found)[-1].args or [])[0])[0] == 5.0


def test_a_dead_device_is_nothing_to_the_program(open_reads: Open) -> None:
    reads = open_reads(waits=True)
    act = boundary_of(lambda x: x + 1)
    for _ in range(4):
        act(torch.ones(2))
    reads.device.dead = reads.device.is_slow = True
    assert act(torch.ones(2)).tolist() == [2.0, 2.0]
    last = (calls(reads.found)[-1].args or [])[0]
    assert isinstance(last, schema.Tensor)
    assert last.statistics == PENDING


def test_calls_after_the_end_are_read_at_once(open_reads: Open) -> None:
    reads = open_reads()
    act = boundary_of(lambda x: None)
    for index in range(4):
        act(torch.full((2,), float(index)))
    assert recorder._current is not None
    recorder._current.end()
    act(torch.full((2,), 9.0))
    assert [told((call.args or [])[0])[0] for call in calls(reads.found)[1:]] == [0.0, 1.0, 2.0, 3.0, 9.0]


def test_types_that_were_not_met_before(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a stream is another once it has to read more types."""
    reads = open_reads()
    monkeypatch.setattr(device_stats, "GROUPS", (1 << device_stats.KIND_OF[torch.float32],))
    act = boundary_of(lambda x: None)
    kernels: list[int] = []
    launch = reads.device.launch

    def looked(kernel: Kernel, *rest: Any) -> bool:
        kernels.append(kernel.function)
        return True

    for _ in range(4):
        act(torch.ones(2))
    reads.device.launch = looked  # type: ignore[method-assign, assignment]
    for _ in range(4):
        act(torch.ones(2, dtype=torch.float64))
    act(torch.ones(2))
    reads.device.launch = launch  # type: ignore[method-assign]
    both = 1 << device_stats.KIND_OF[torch.float32] | 1 << device_stats.KIND_OF[torch.float64]
    assert [found & both for found in kernels[-2:]] == [both, both]


def test_threads_take_entries_of_their_own(open_reads: Open) -> None:
    reads = open_reads(waits=False, entries=64)
    act = boundary_of(lambda x, number: None)

    def work(first: int) -> None:
        for number in range(first, first + 40):
            act(torch.full((2,), float(number)), number)

    workers = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = [call.args or [] for call in calls(reads.found)[1:]]
    assert {number for _, number in found} == {1000 * k + index for k in range(4) for index in range(40)}
    # A thread that has taken an entry and not launched yet is a device that has not got there.
    read = [(x.max, number) for x, number in found if isinstance(x, schema.Tensor) and x.statistics != FAR_BEHIND]
    assert len(read) > 100
    assert all(highest == number for highest, number in read)


def test_what_a_contract_is_about_is_read_at_level_3(open_reads: Open) -> None:
    reads = open_reads(3)
    running = recorder._current
    assert running is not None
    contracts.contract("route", arg="ids", finite=True)
    route = boundary.wrap(lambda ids, other: None, "route", is_method=False)
    first = torch.ones(2)
    route(first, first)
    read_by(running.values, reads.page, waits=False)
    for index in range(6):
        route(torch.full((2,), float(index)), torch.ones(3))
    last = calls(reads.found)[-1].args or []
    assert told(last[0])[0] == 5.0
    assert isinstance(last[1], schema.Tensor)
    assert last[1].min is None
    assert any('"token":' in line for line in short(reads.found))


def test_sizes_that_were_not_met_before(open_reads: Open) -> None:
    """A batch grows and shrinks: how it is read follows from its sizes, as far as it is dense."""
    reads = open_reads(statistics_max_bytes=40_000)
    act = boundary_of(lambda x: None)
    sizes = [3, 5, 8, 8000, 1, 7, 12_000, 0, 9, 8001, 2049, 0, 4]
    given = [torch.arange(float(size)) for size in sizes]
    for x in given:
        act(x)
    found = [(call.args or [])[0] for call in calls(reads.found)[1:]]
    for x, value in zip(given, found, strict=True):
        assert isinstance(value, schema.Tensor)
        if x.numel() and x.nbytes <= 40_000:
            assert told(value) == expected(x)
        else:
            assert value.statistics == (stats.too_large(40_000) if x.numel() else stats.EMPTY)
    assert len([line for line in short(reads.found) if '"type":"call"' in line]) >= 6


def test_what_is_too_large_is_not_read_once_it_is_smaller_without_asking(open_reads: Open) -> None:
    reads = open_reads(statistics_max_bytes=1024)
    act = boundary_of(lambda x: None)
    for size in (1000, 1000, 1000, 10, 1000):
        act(torch.ones(size))
    values = [(call.args or [])[0] for call in calls(reads.found)[1:]]
    read = [value.max for value in values if isinstance(value, schema.Tensor)]
    assert read == [None, None, None, 1.0, None]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 7)), min_size=6, max_size=6),
    st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.int64]),
)
def test_dense_tensors_are_read_as_python_has_them_read(
    open_reads: Open, places: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    reads = open_reads(waits=False)
    act = boundary_of(lambda x: None)
    base = torch.zeros(20_000, dtype=dtype)
    reads.device.is_slow, reads.device.asked = True, []  # nobody reads
    plans = {}
    for size, offset in [(4, 0), (4, 0), *places]:
        x = base[offset : offset + size]
        if size:
            request = device_stats.request(x, 8)
            assert request is not None
            plans[request[0], size] = request[1].words
        act(x)
    del reads.device._queue[:]
    asked = {(address, words[2] * (8192 // dtype.itemsize) + words[3]): words for address, *words in reads.device.asked}
    assert len(asked) >= min(1, len([size for size, _ in places if size]) - 1)
    assert {key: tuple(words) for key, words in asked.items()} == {key: plans[key] for key in asked}


def test_a_tensor_of_another_device_than_the_current_one_is_not_read(
    open_reads: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address means nothing there, or its values may still be written."""
    reads = open_reads()
    act = boundary_of(lambda x: None)
    for _ in range(4):
        act(torch.ones(4))
    here = reads.here
    reads.markers.device = 1
    act(torch.ones(4))
    assert reads.here == here


def test_a_negative_view_is_read_as_what_it_shows(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = open_reads()
    monkeypatch.setattr(deferred_stats, "lies_there", lambda tensor: False)
    act = boundary_of(lambda x: None)
    negative = torch._neg_view(torch.tensor([1.0, 2.0, 3.0]))
    for _ in range(5):
        act(negative)
    assert [told((call.args or [])[0])[:2] for call in calls(reads.found)[1:]] == [(-3.0, -1.0)] * 5


def test_reading_that_stops_while_memory_is_made_for_it(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the process another thread may close the page meanwhile."""
    reads = open_reads()
    act = boundary_of(lambda x: x.numel())
    for _ in range(4):
        act(torch.ones(4))
    reads.box.forget_readers()
    lane = reads.page.reader.lane

    def stopped(place: tuple[int, int]) -> Any:
        reads.box.stop_reading()
        return lane(place)

    monkeypatch.setattr(reads.page.reader, "lane", stopped)
    assert act(torch.ones(4)) == 4


def test_what_stops_on_nan_is_seen_by_python(open_reads: Open) -> None:
    open_reads(waits=False, stop_on_nan=True)
    assert recorder._current is not None
    assert recorder._current.in_c is None


def test_the_mean_of_the_lowest_numbers(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = open_reads()
    monkeypatch.setattr(deferred_stats, "lies_there", lambda tensor: False)
    act = boundary_of(lambda x: None)
    lowest = torch.finfo(torch.float64).min
    for _ in range(5):
        act(torch.full((4,), lowest / 4, dtype=torch.float64))
    means = [
        tensor.mean for call in calls(reads.found) for tensor in call.args or [] if isinstance(tensor, schema.Tensor)
    ]
    assert means == [lowest / 4] * 5


def test_the_limit_holds_on_the_host_too(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = open_reads(statistics_max_bytes=1024)
    monkeypatch.setattr(deferred_stats, "lies_there", lambda tensor: False)
    act = boundary_of(lambda x: None)
    for size in (10, 10, 10, 1000):
        act(torch.ones(size, dtype=torch.int64))
    last = (calls(reads.found)[-1].args or [])[0]
    assert isinstance(last, schema.Tensor)
    assert last.statistics == stats.too_large(1024)


def test_what_is_too_large_does_not_depend_on_where_it_begins(open_reads: Open) -> None:
    reads = open_reads(statistics_max_bytes=4096)
    act = boundary_of(lambda x: None)
    base = torch.arange(8192.0)
    far, near = base[6000:6100].expand(20, 100), base[:100].expand(20, 100)
    for x in (far, far, far, near, far, near):
        act(x)
    highest = [told((call.args or [])[0])[1] for call in calls(reads.found)[1:]]
    assert highest == [6099.0, 6099.0, 6099.0, 99.0, 6099.0, 99.0]


def test_launches_of_two_threads_do_not_cross(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied for one is what its own launch reads."""
    monkeypatch.setattr(device_stats, "MANY_PARTS", 0)
    reads = open_reads(waits=False)
    act = boundary_of(lambda x: None)
    for index in range(4):
        act(torch.full((8,), float(index)))
    copied, over = threading.Event(), threading.Event()
    plain = reads.device._copy

    def copy(to: int, host: int, size: int, stream: int) -> int:
        plain(to, host, size, stream)
        if threading.current_thread().name == "first":
            copied.set()
            over.wait(0.5)
        return 0

    monkeypatch.setattr(
        reads.device, "_functions", (reads.device._functions[0], _Copy(copy), *reads.device._functions[2:])
    )
    reads.box.use_reader(**reads.page.in_c(), waits=False)
    held = [torch.full((8,), 100.0), torch.full((8,), 200.0)]
    first = threading.Thread(target=act, args=(held[0],), name="first")
    first.start()
    assert copied.wait(5)
    second = threading.Thread(target=act, args=(held[1],))
    second.start()
    second.join(0.1)
    over.set()
    first.join()
    second.join()
    assert {told((call.args or [])[0])[1] for call in calls(reads.found)[-2:]} == {100.0, 200.0}


class SlowLine:
    """A pipe in the place of the file, whose reader has a call's line wait in the middle of being written."""

    def __init__(self, reads: Reads) -> None:
        assert recorder._current is not None
        record: Any = recorder._current._record
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self._write, b"x" * 4096)
        os.set_blocking(self._write, True)
        appender, stretch = record.sink.appender, record.sink.stretch
        appender.open(self._write, appender.size, appender.size + 2**20, stretch)

    def drain(self, thread: threading.Thread) -> None:
        """Let it be written."""
        while thread.is_alive():
            os.read(self._read, 2**16)
            thread.join(0.01)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def test_values_are_those_from_before_the_line_is_written(open_reads: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may take the memory of a tensor away while the system writes the line."""
    reads = open_reads()
    monkeypatch.setattr(deferred_stats, "lies_there", lambda tensor: False)
    act = boundary_of(lambda x: None)
    for _ in range(4):
        act(torch.full((4000,), 1.0))
    line = SlowLine(reads)
    first = reads.page._entries.next
    x = torch.full((4000,), 1.0)
    thread = threading.Thread(target=act, args=(x,))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    x.untyped_storage().resize_(0)
    line.drain(thread)
    line.close()
    token = statistics_page.entry_token(reads.page._view, first)
    found = reads.page.result(first, token, statistics_page.Values(statistics_page.FLOATING, 4000))
    assert found == statistics_page.Statistics(1.0, 1.0, 1.0, 0, 0)


def test_the_device_does_not_read_what_was_taken_away_meanwhile(open_reads: Open) -> None:
    reads = open_reads()
    act = boundary_of(lambda x: None)
    for _ in range(4):
        act(torch.full((4000,), 1.0))
    line = SlowLine(reads)
    x = torch.full((4000,), 1.0)
    thread = threading.Thread(target=act, args=(x,))
    thread.start()
    thread.join(0.3)
    before, x_was = len(reads.device.asked), x.data_ptr()
    x.untyped_storage().resize_(0)
    line.drain(thread)
    line.close()
    assert x_was not in {address for address, *_ in reads.device.asked[before:]}


def test_a_page_that_is_closed_while_a_line_is_written_has_its_entries(open_reads: Open) -> None:
    reads = open_reads(waits=False)
    act = boundary_of(lambda x: None)
    for index in range(4):
        act(torch.full((4,), float(index)))
    assert recorder._current is not None
    assert recorder._current.values is not None
    line = SlowLine(reads)
    thread = threading.Thread(target=act, args=(torch.full((4,), 55.0),))
    thread.start()
    thread.join(0.3)
    recorder._current.values.close()
    line.drain(thread)
    line.close()
    tokens = statistics_page.parse(reads.page._kept.read_bytes()).entries
    assert sorted(tokens) == [1, 2, 3, 4]  # what was never read is not said to be


tensors = st.lists(st.integers(1, 4), max_size=4).map(lambda shape: torch.randn(shape) if shape else torch.randn(1))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tensors, min_size=1, max_size=5), st.integers(0, 3))
def test_any_tensors(open_reads: Open, given: list[torch.Tensor], moved: int) -> None:
    reads = open_reads(waits=False)
    act = boundary_of(lambda values: values)
    seen = [[tensor.transpose(0, -1).contiguous().mul_(k) for tensor in given][moved % len(given) :] for k in range(4)]
    for values in seen:
        act(values)
    for call, values in zip(
        [call for call in read_back(reads.found) if isinstance(call, schema.Call)][-4:], seen, strict=True
    ):
        (sequence,) = call.args or []
        assert isinstance(sequence, schema.Sequence)
        assert [told(value) for value in sequence.items] == [expected(value) for value in values]
