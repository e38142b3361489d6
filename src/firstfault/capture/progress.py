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
import time
from pathlib import Path
from typing import Any, Protocol

import torch

from firstfault.record import layout, progress
from firstfault.record.layout import PRIVATE_FILE

_DEVICE_MAP = 0x02  # CU_MEMHOSTREGISTER_DEVICEMAP
_PORTABLE = 0x01  # CU_MEMHOSTREGISTER_PORTABLE: for every context of the process
_ENQUEUED = struct.Struct("<Q")
_CUDA_SUCCESS = 0


class MarkersUnavailable(Exception):
    """Markers cannot be written here; the text says why."""


class Driver(Protocol):
    """What markers need of a GPU's driver."""

    def register(self, address: int, size: int) -> int:
        """Map host memory for the device; its address there.

        Raises:
            MarkersUnavailable: the driver refused.
        """

    def write(self, stream: int, address: int, value: int) -> None:
        """Enqueue a write of a 32-bit word on a stream; a dead context takes none, and that is no error."""

    def current(self) -> tuple[int, int]:
        """The current device and the handle of its current stream."""


class CudaDriver:
    """CUDA's driver through ctypes: 1.9 µs a write, as much as through cuda.bindings."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
            write = self._cuda.cuStreamWriteValue32_v2
        except (OSError, AttributeError) as error:
            raise MarkersUnavailable(f"the CUDA driver cannot be used ({error})") from error
        write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        self._write: Any = write
        self._device: Any = torch._C._cuda_getDevice
        self._stream: Any = torch._C._cuda_getCurrentRawStream

    def register(self, address: int, size: int) -> int:
        """Map host memory for the device; its address there."""
        flags = _DEVICE_MAP | _PORTABLE
        status = self._cuda.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
        if status != _CUDA_SUCCESS:
            raise MarkersUnavailable(f"cuMemHostRegister failed with error {status}")
        device = ctypes.c_uint64()
        status = self._cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(device), ctypes.c_void_p(address), 0)
        if status != _CUDA_SUCCESS:
            raise MarkersUnavailable(f"cuMemHostGetDevicePointer failed with error {status}")
        return device.value

    def write(self, stream: int, address: int, value: int) -> None:
        """Enqueue a write of a 32-bit word on a stream; a dead context takes none, and that is no error."""
        self._write(stream, address, value, 0)

    def current(self) -> tuple[int, int]:
        """The current device and the handle of its current stream."""
        device = self._device()
        return device, self._stream(device)


class Markers:
    """The marker page of this process."""

    def __init__(self, path: Path, folder: Path, driver: Driver) -> None:
        """Make the page at ``path`` for the process of ``folder``, and register it.

        Raises:
            MarkersUnavailable: shared memory or the driver refused.
        """
        self.path = path
        self._folder = folder.absolute()
        self._driver = driver
        self._slots: dict[tuple[int, int], int] = {}
        self._page = shared_page(path, progress.PAGE_BYTES)
        self._started = time.time_ns()
        self._page[: len(self._header())] = self._header()
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._base = driver.register(address, progress.PAGE_BYTES)

    def place(self) -> tuple[int, int]:
        """The current device and stream, or device -1 while a graph is captured: what is captured has not run."""
        return (-1, 0) if torch._C._cuda_isCurrentStreamCapturing() else self._driver.current()

    def begin(self, call: int, place: tuple[int, int]) -> None:
        """Mark that a call begins."""
        self._mark(*place, progress.begin_marker(call))

    def end(self, call: int, place: tuple[int, int]) -> None:
        """Mark that a call has ended."""
        self._mark(*place, progress.end_marker(call))

    def close(self) -> None:
        """Leave the page in the recording, and take its name from shared memory.

        An uncaught device error ends a process in order: what its device had not completed must be kept then too.
        """
        fd = os.open(self._folder / layout.PROGRESS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.write(fd, self._page[:])
        finally:
            os.close(fd)
        self.path.unlink(missing_ok=True)

    def _mark(self, device: int, stream: int, marker: int) -> None:
        if device < 0:
            return
        offset = self._slots.get((device, stream)) or self._slot(device, stream)
        if offset < 0:
            return
        _ENQUEUED.pack_into(self._page, offset + progress.ENQUEUED_OFFSET, marker)
        self._driver.write(stream, self._base + offset + progress.REACHED_OFFSET, marker & 0xFFFFFFFF)

    def _slot(self, device: int, stream: int) -> int:
        """Take the next slot for a stream; -1 when all are taken."""
        index = len(self._slots)
        if index >= progress.SLOTS:
            return -1
        offset = progress.slot_offset(index)
        taken = progress.slot(device, progress.STREAM, stream)
        self._page[offset : offset + len(taken)] = taken
        self._slots[device, stream] = offset
        self._page[: len(self._header())] = self._header()
        return offset

    def _header(self) -> bytes:
        return progress.header(os.getpid(), self._started, str(self._folder), len(self._slots))


def shared_page(path: Path, size: int) -> mmap.mmap:
    """A new page of shared memory that its owner alone may look at.

    Raises:
        MarkersUnavailable: it cannot be made.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.posix_fallocate(fd, 0, size)  # a hole filled later could fail, with a signal
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise MarkersUnavailable(f"{path} cannot be made ({error.strerror})") from error


def open_markers(folder: Path) -> Markers:
    """The marker page of the process whose folder in the recording is ``folder``.

    Raises:
        MarkersUnavailable: shared memory or the driver refused.
    """
    return Markers(layout.marker_page(folder), folder, CudaDriver())
