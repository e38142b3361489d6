"""CUDA's driver, as the program has loaded it; nothing here starts CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@cache
def driver() -> Any:
    """The driver's library, or None where it cannot be loaded."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def address(function: Any) -> int:
    """Where a library's function lies."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Runtime(NamedTuple):
    """What torch itself asks of the runtime, for who cannot ask torch: functions of libraries that it has loaded."""

    is_capturing: Any
    get_device: Any
    get_stream: Any

    def current(self) -> tuple[int, int] | None:
        """The current device and the handle of its current stream, or None where one cannot be told."""
        device, stream, capturing = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        if (
            self.get_device(ctypes.byref(device))
            or self.get_stream(device, ctypes.byref(stream))
            or self.is_capturing(stream, ctypes.byref(capturing))
            or capturing.value
        ):
            return None
        return device.value, stream.value or 0

    def addresses(self) -> tuple[int, int, int]:
        """Where each of them lies."""
        return address(self.is_capturing), address(self.get_device), address(self.get_stream)


def runtime() -> Runtime | None:
    """The functions of the libraries that torch has loaded; None where they are not as expected."""
    folder = Path(torch.__file__).parent / "lib"
    try:
        # RTLD_NOLOAD: only what is there already. A library's handle finds the functions of those that it needs.
        mode = os.RTLD_NOLOAD | os.RTLD_NOW
        c10 = ctypes.CDLL(str(folder / "libc10_cuda.so"), mode=mode)
        own = ctypes.CDLL(str(folder / "libtorch_cuda.so"), mode=mode)
        return Runtime(c10.cudaStreamIsCapturing, c10.cudaGetDevice, own.aoti_torch_get_current_cuda_stream)
    except (OSError, AttributeError):
        return None


def has_context() -> bool:
    """Whether this thread has a CUDA context."""
    context = ctypes.c_void_p()
    library = driver()
    return library is not None and library.cuCtxGetCurrent(ctypes.byref(context)) == 0 and bool(context)


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread allocate, register and synchronise, which would end a graph's capture in another thread.

    A capture that is begun as usual forbids those to all threads of the process but the ones in this mode.
    """
    library = driver()
    if library is None:
        yield
        return
    mode = ctypes.c_int(_CAPTURE_RELAXED)
    library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
