"""Progress markers of the calls of a black box, with a stand-in for the driver: there is none here."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture import boundary, compiled, cuda, progress, recorder
from firstfault.read.formats.recording import Recording as Read
from firstfault.record import layout, schema
from firstfault.record import progress as page_format
from tests.conftest import Record
from tests.unit.recording import Recording

RING = 2**20
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
_IsCapturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
_GetDevice = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_GetStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


class FakeDriver:
    """A device that completes at once what it is given, and that C can ask too."""

    def __init__(self, *, is_asked_itself: bool = False) -> None:
        self.device, self.stream, self.is_captured, self.fails = 0, 0, False, False
        self.written: list[tuple[int, int]] = []
        """Stream and value of each write."""
        self._functions = (
            _Write(self._take),
            _IsCapturing(self._capturing),
            _GetDevice(self._get_device),
            _GetStream(self._get_stream),
        )
        write, *runtime = map(cuda.address, self._functions)
        asked_itself: Any = tuple(runtime) if is_asked_itself else (0, 0, 0)
        self.asked = progress.Asked(
            lambda: self.is_captured, self._current_device, lambda device: self.stream, write, asked_itself
        )

    def register(self, address: int, size: int) -> int:
        return address

    def write(self, stream: int, address: int, value: int) -> int:
        return self._take(stream, address, value, 0)

    def current(self) -> tuple[int, int]:
        return progress.NOWHERE if self.is_captured or self.fails else (self.device, self.stream)

    def captured(self) -> tuple[int, int]:
        return (self.device, self.stream) if self.is_captured else progress.NOWHERE

    def _current_device(self) -> int:
        if self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.device

    def _take(self, stream: int | None, address: int, value: int, flags: int) -> int:
        self.written.append((stream or 0, value))
        ctypes.c_uint32.from_address(address).value = value
        return 0

    def _capturing(self, stream: int, status: Any) -> int:
        status[0] = self.is_captured
        return self.fails

    def _get_device(self, device: Any) -> int:
        device[0] = self.device
        return 0

    def _get_stream(self, device: int, stream: Any) -> int:
        stream[0] = self.stream
        return 0


@pytest.fixture(params=["in C", "in C, of the runtime", "in Python"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    if request.param == "in Python":
        monkeypatch.setattr(compiled, "crossing", None)
    elif compiled.crossing is None:
        pytest.skip("the C of crossing/ is not built")
    return FakeDriver(is_asked_itself=request.param == "in C, of the runtime")


@pytest.fixture
def marked(record: Record, tmp_path: Path, driver: FakeDriver) -> Iterator[Recording]:
    """A recording whose calls are marked."""
    found = record(3, ring_bytes=RING, text_dest=None)
    boundary.wrap(lambda: None, "first")()
    opened = use(found, tmp_path, driver)
    yield found
    opened.markers = None  # of a page that is gone when the process ends


def use(found: Recording, tmp_path: Path, driver: FakeDriver) -> recorder.Recorder:
    """Have the calls of a recording marked from now on."""
    assert recorder._current is not None
    (folder,) = found.folder.iterdir()
    recorder._current.use_markers(progress.Markers(tmp_path / "page", folder, driver))
    return recorder._current


def records(found: Recording, kind: type[Any]) -> list[Any]:
    source = Read(found.folder)
    return [event.record for event in source.events(lambda count: None) if isinstance(event.record, kind)]


def slots(tmp_path: Path) -> list[page_format.Slot]:
    return page_format.parse((tmp_path / "page").read_bytes()).slots


def test_each_call_is_marked_at_begin_and_end(marked: Recording, driver: FakeDriver, tmp_path: Path) -> None:
    call = boundary.wrap(lambda x: x, "pkg.op")
    for _ in range(4):
        call(torch.ones(2))
    expected = [marker for n in range(2, 6) for marker in (page_format.begin_marker(n), page_format.end_marker(n))]
    assert driver.written == [(0, marker) for marker in expected]
    (slot,) = slots(tmp_path)
    assert (slot.enqueued, slot.reached, slot.caught_up) == (expected[-1], expected[-1], True)
    assert [(call.device, call.stream) for call in records(marked, schema.Call)] == [(-1, 0)] + [(0, 0)] * 4
    assert [(back.device, back.stream) for back in records(marked, schema.Return)] == [(-1, 0)] + [(0, 0)] * 4


def test_each_stream_has_its_own_slot(marked: Recording, driver: FakeDriver, tmp_path: Path) -> None:
    call = boundary.wrap(lambda: None, "pkg.op")
    for _ in range(3):
        for device, stream in ((0, 0), (0, 0x7F0000001230), (1, 0), *((2, number) for number in range(1, 12))):
            driver.device, driver.stream = device, stream
            call()
    found = {(slot.device, slot.handle): slot.caught_up for slot in slots(tmp_path)}
    assert found == dict.fromkeys(
        [(0, 0), (0, 0x7F0000001230), (1, 0), *((2, number) for number in range(1, 12))], True
    )
    assert [(call.device, call.stream) for call in records(marked, schema.Call)][-11:] == [(2, n) for n in range(1, 12)]


def test_more_streams_than_slots(marked: Recording, driver: FakeDriver, tmp_path: Path) -> None:
    call = boundary.wrap(lambda: None, "pkg.op")
    for stream in range(page_format.SLOTS + 5):
        driver.stream = stream
        call()
        call()
    assert len(slots(tmp_path)) == page_format.SLOTS


@pytest.mark.parametrize("trouble", ["is_captured", "fails"])
def test_nothing_is_marked_where_it_must_not_be(marked: Recording, driver: FakeDriver, trouble: str) -> None:
    call = boundary.wrap(lambda: None, "pkg.op")
    call()
    call()
    driver.written.clear()
    setattr(driver, trouble, True)
    call()
    setattr(driver, trouble, False)
    assert driver.written == []
    call()
    assert len(driver.written) == 2
    assert [call.device for call in records(marked, schema.Call)][-2:] == [-1, 0]


def test_a_capture_may_begin_in_the_middle_of_a_call(marked: Recording, driver: FakeDriver) -> None:
    call = boundary.wrap(lambda to: setattr(driver, "is_captured", to), "pkg.op")
    for _ in range(3):
        call(False)
    for _ in range(3):
        call(True)
        driver.is_captured = False
    assert [back.device for back in records(marked, schema.Return)][-6:] == [0, 0, 0, -1, -1, -1]
    assert [begun.device for begun in records(marked, schema.Call)][-6:] == [0] * 6


def test_a_call_that_raises_is_marked_too(marked: Recording, driver: FakeDriver) -> None:
    def fail(why: int) -> None:
        if why > 1:
            raise ValueError(why)

    call = boundary.wrap(fail, "pkg.op")
    for why in (0, 0, 0, 2):
        with pytest.raises(ValueError, match="2") if why else nullcontext():
            call(why)
    (raised,) = records(marked, schema.Raise)
    assert (raised.n, raised.device) == (5, 0)
    assert driver.written[-2:] == [(0, page_format.begin_marker(5)), (0, page_format.end_marker(5))]


def test_a_call_that_began_before_there_were_markers_has_none_at_its_end(
    record: Record, tmp_path: Path, driver: FakeDriver
) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    switch: list[Callable[[], Any]] = [lambda: None]
    call = boundary.wrap(lambda: switch[0](), "pkg.op")
    for _ in range(3):
        call()
    switch[0] = lambda: use(found, tmp_path, driver)
    call()
    assert driver.written == []
    assert recorder._current is not None
    recorder._current.markers = None


def test_threads_on_one_stream_write_in_order(marked: Recording, driver: FakeDriver, tmp_path: Path) -> None:
    call = boundary.wrap(lambda: None, "pkg.op")

    def work() -> None:
        for _ in range(300):
            call()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (slot,) = slots(tmp_path)
    assert slot.enqueued == driver.written[-1][1] == slot.reached
    numbers = [call.n for call in records(marked, schema.Call)]
    assert sorted(numbers) == list(range(1, 1202))
    assert sorted(marker for _, marker in driver.written) == list(range(4, 2404))


def test_the_page_is_the_recordings(marked: Recording, tmp_path: Path) -> None:
    boundary.wrap(lambda: None, "pkg.op")()
    (folder,) = marked.folder.iterdir()
    assert recorder._current is not None
    assert recorder._current.markers is not None
    recorder._current.markers.keep()
    assert not (tmp_path / "page").exists()
    assert (folder / layout.PROGRESS).exists()
