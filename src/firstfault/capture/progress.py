"""Progress markers: the device itself writes down which call it has completed.

The host runs ahead of the GPU, so the last call in a log is usually not the one that faulted. After each call,
and before it, the stream writes the call's number into a page of shared memory (``cuStreamWriteValue32``),
which outlives a dead context and a dead process. It needs no synchronisation and captures into CUDA graphs.

The driver sits behind ``Driver``, which is all of CUDA that is used here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from firstfault.capture import compiled, cuda, graphs
from firstfault.record import layout, marker_files, progress, schema
from firstfault.record.layout import PRIVATE_FILE

_DEVICE_MAP = 0x02  # CU_MEMHOSTREGISTER_DEVICEMAP
_PORTABLE = 0x01  # CU_MEMHOSTREGISTER_PORTABLE: for every context of the process
_ENQUEUED = struct.Struct("<Q")
_CUDA_SUCCESS = 0
NOWHERE = (-1, 0)


class MarkersUnavailable(Exception):
    """Markers cannot be written here; the text says why."""


class Asked(NamedTuple):
    """What a driver is asked for each marker, for C to do the same.

    Attributes:
        capturing: whether the current stream is being captured.
        device: the current device.
        stream: the handle of a device's current stream.
        write: the address of ``cuStreamWriteValue32``.
        runtime: the addresses of what answers the first three for C; 0 where it can only be asked in Python.
    """

    capturing: Callable[[], bool]
    device: Callable[[], int]
    stream: Callable[[int], int]
    write: int
    runtime: tuple[int, int, int] = (0, 0, 0)


class Driver(Protocol):
    """What is needed of a GPU's driver."""

    def register(self, address: int, size: int) -> int:
        """Map host memory for the device; its address there.

        Raises:
            MarkersUnavailable: the driver refused.
        """

    def write(self, stream: int, address: int, value: int) -> int:
        """Enqueue a write of a 32-bit word on a stream; 0, or the driver's error: a dead context takes none."""

    def current(self) -> tuple[int, int]:
        """The current device and the handle of its current stream; ``NOWHERE`` where no marker can be written."""

    def captured(self) -> tuple[int, int]:
        """The current device and the handle of its current stream while that is captured; else ``NOWHERE``."""


class MarkerDriver(Driver, Protocol):
    """What markers need besides: to be written by C too."""

    asked: Asked


class CudaDriver:
    """CUDA's driver through ctypes: 1.9 µs a write, as much as through cuda.bindings."""

    def __init__(self) -> None:
        try:
            self._cuda = cuda.driver()
            write = self._cuda.cuStreamWriteValue32_v2
        except AttributeError as error:
            raise MarkersUnavailable(f"the CUDA driver cannot be used ({error})") from error
        write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        self._write: Any = write
        self._device: Any = torch._C._cuda_getDevice
        self._stream: Any = torch._C._cuda_getCurrentRawStream
        self._capturing: Any = torch._C._cuda_isCurrentStreamCapturing
        self.asked = Asked(self._capturing, self._device, self._stream, cuda.address(write), self._runtime())

    def _runtime(self) -> tuple[int, int, int]:
        """The runtime's own answers to what ``current`` asks, as far as they are the same."""
        asked = cuda.runtime()
        with suppress(RuntimeError):
            if asked is not None and asked.current() == (self._device(), self._stream(self._device())):
                return asked.addresses()
        return 0, 0, 0

    def register(self, address: int, size: int) -> int:
        """Map host memory for the device; its address there."""
        flags = _DEVICE_MAP | _PORTABLE
        with cuda.relaxed_capture():
            status = self._cuda.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
        if status != _CUDA_SUCCESS:
            raise MarkersUnavailable(f"cuMemHostRegister failed with error {status}")
        device = ctypes.c_uint64()
        status = self._cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(device), ctypes.c_void_p(address), 0)
        if status != _CUDA_SUCCESS:
            raise MarkersUnavailable(f"cuMemHostGetDevicePointer failed with error {status}")
        return device.value

    def write(self, stream: int, address: int, value: int) -> int:
        """Enqueue a write of a 32-bit word on a stream; 0, or the driver's error: a dead context takes none."""
        status: int = self._write(stream, address, value, 0)
        return status

    def current(self) -> tuple[int, int]:
        """The current device and the handle of its current stream; device -1 while that is captured.

        What is captured has not run. Once a device has failed the question about capture itself raises.
        """
        try:
            if self._capturing():
                return NOWHERE
            device = self._device()
            return device, self._stream(device)
        except RuntimeError:
            return NOWHERE

    def captured(self) -> tuple[int, int]:
        """The current device and the handle of its current stream while that is captured; else ``NOWHERE``."""
        try:
            device = self._device()
            return (device, self._stream(device)) if self._capturing() else NOWHERE
        except RuntimeError:
            return NOWHERE


class _Slot(NamedTuple):
    offset: int
    """In the page, in bytes."""
    address: int
    """Where the device writes."""
    lock: threading.Lock
    page: mmap.mmap
    write: Callable[[int, int, int], int]

    def mark(self, stream: int, marker: int) -> None:
        """Enqueue a marker on a stream."""
        if self.offset < 0:
            return
        with self.lock:  # two threads on one stream: what was enqueued last must be what is written last
            _ENQUEUED.pack_into(self.page, self.offset + progress.ENQUEUED_OFFSET, marker)
            self.write(stream, self.address, marker & 0xFFFFFFFF)


class Slot(Protocol):
    """A stream's place in the page."""

    def mark(self, stream: int, marker: int) -> None:
        """Enqueue a marker on that stream."""


class Markers:
    """The marker page of this process."""

    def __init__(self, path: Path, folder: Path, driver: MarkerDriver, *, in_graphs: bool = False) -> None:
        """Make the page at ``path`` for the process of ``folder``, and register it.

        Args:
            path: in shared memory.
            folder: the folder of the process in its recording.
            driver: the GPU's.
            in_graphs: whether markers are captured into CUDA graphs, where each takes 3 µs of every replay.

        Raises:
            MarkersUnavailable: shared memory or the driver refused.
        """
        self.path = path
        self._folder = folder.absolute()
        self._driver = driver
        self._current = driver.current
        self._write = driver.write
        self.asked = driver.asked
        self.in_graphs = in_graphs
        self._slots: dict[tuple[int, int], Slot] = {}
        self._graph_slots: dict[int, _Slot] = {}
        self._taken = 0
        self._taking = threading.Lock()
        self._page = shared_page(path, progress.PAGE_BYTES)
        self._started = time.time_ns()
        self._page[: len(self._header())] = self._header()
        self._own_address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._base = driver.register(self._own_address, progress.PAGE_BYTES)

    def place(self, graph: int) -> tuple[int, int, int]:
        """Where a call begins: device, stream and graph, with ``graph`` the one that it replays.

        The device is -1 while a graph is captured, which is then the graph: what is captured has not run.
        """
        device, stream = self._current()
        return device, stream, graph if device >= 0 else graphs.capturing()

    def begin(self, call: schema.Call) -> None:
        """Mark that a call begins, where it was found to be."""
        marker = progress.begin_marker(call.n)
        if call.device >= 0:
            if call.graph and self.in_graphs:
                self._restart(call.graph, call.stream)
            self._mark(call.device, call.stream, marker)
        elif call.graph and self.in_graphs:
            self._mark_captured(call.graph, marker)

    def end(self, record: schema.Return | schema.Raise) -> None:
        """Mark that a call has ended, and note where."""
        record.device, record.stream = self._current()
        marker = progress.end_marker(record.n)
        if record.device >= 0:
            self._mark(record.device, record.stream, marker)
        elif self.in_graphs and (graph := graphs.capturing()):
            self._mark_captured(graph, marker)

    def keep(self) -> None:
        """Leave the page in the recording, and take its name from shared memory.

        An uncaught device error ends a process in order: what its device had not completed must be kept then too.
        """
        marker_files.keep(self._page[:], self._folder)
        self.path.unlink(missing_ok=True)

    def _mark(self, device: int, stream: int, marker: int) -> None:
        slot = self._slots.get((device, stream)) or self.slot(device, stream)
        slot.mark(stream, marker)

    def _mark_captured(self, graph: int, marker: int) -> None:
        """Capture a marker into a graph, which writes it at each replay."""
        slot = self._graph_slots.get(graph) or self._graph_slot(graph)
        device, stream = self._driver.captured()
        if slot.offset >= 0 and device >= 0:
            self._write(stream, slot.address, marker & 0xFFFFFFFF)

    def _restart(self, graph: int, stream: int) -> None:
        """Count a replay of a graph, and let the device begin it at no marker."""
        slot = self._graph_slots.get(graph)
        if slot is None or slot.offset < 0:
            return
        with slot.lock:
            (replays,) = _ENQUEUED.unpack_from(self._page, slot.offset + progress.ENQUEUED_OFFSET)
            _ENQUEUED.pack_into(self._page, slot.offset + progress.ENQUEUED_OFFSET, replays + 1)
            self._write(stream, slot.address, 0)

    def slot(self, device: int, stream: int) -> Slot:
        """The place of a stream in the page, taken at its first marker."""
        with self._taking:
            slot = self._slots.get((device, stream))  # taken by another thread, just now
            if slot is None:
                taken = self._take(progress.slot(device, progress.STREAM, stream))
                slot = self._slots[device, stream] = self._in_c(taken)
            return slot

    def _in_c(self, slot: _Slot) -> Slot:
        """A slot that C writes to, where it can."""
        if compiled.crossing is None or slot.offset < 0:
            return slot
        enqueued = self._own_address + slot.offset + progress.ENQUEUED_OFFSET
        in_c: Slot = compiled.crossing.Slot(enqueued, slot.address, self.asked.write)
        return in_c

    def _graph_slot(self, graph: int) -> _Slot:
        with self._taking:
            slot = self._graph_slots.get(graph)
            if slot is None:
                slot = self._graph_slots[graph] = self._take(progress.slot(-1, progress.GRAPH, graph))
            return slot

    def _take(self, fresh: bytes) -> _Slot:
        """Take the next slot; an offset of -1 when all are taken."""
        index = self._taken
        if index >= progress.SLOTS:
            return _Slot(-1, 0, self._taking, self._page, self._write)
        self._taken += 1
        offset = progress.slot_offset(index)
        self._page[offset : offset + len(fresh)] = fresh
        self._page[: len(self._header())] = self._header()
        return _Slot(offset, self._base + offset + progress.REACHED_OFFSET, threading.Lock(), self._page, self._write)

    def _header(self) -> bytes:
        namespace = marker_files.pid_namespace()
        return progress.header(os.getpid(), self._started, str(self._folder), self._taken, namespace)


_registered: list[mmap.mmap] = []
"""Never unmapped: what the driver knows as a device's memory must stay so, for it may still write there."""


def private_page(size: int) -> mmap.mmap:
    """New memory of this process alone, for a device to read or write."""
    page = mmap.mmap(-1, size)
    _registered.append(page)
    return page


def shared_page(path: Path, size: int) -> mmap.mmap:
    """A new page of shared memory that its owner alone may look at.

    Raises:
        MarkersUnavailable: it cannot be made.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.posix_fallocate(fd, 0, size)  # a hole filled later could fail, with a signal
            page = mmap.mmap(fd, size)
            _registered.append(page)
            return page
        finally:
            os.close(fd)
    except OSError as error:
        raise MarkersUnavailable(f"{path} cannot be made ({error.strerror})") from error


def open_markers(folder: Path, *, in_graphs: bool) -> Markers | None:
    """The marker page of the process whose folder in the recording is ``folder``; None where it is too early for it.

    Raises:
        MarkersUnavailable: shared memory or the driver refused.
    """
    driver = CudaDriver()
    if not cuda.has_context() or driver.current() == NOWHERE:
        return None
    with suppress(OSError):
        marker_files.collect()  # what processes left that were killed without anyone to see to it
    return Markers(layout.marker_page(folder), folder, driver, in_graphs=in_graphs)
