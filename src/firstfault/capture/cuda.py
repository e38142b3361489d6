"""CUDA's driver, as the program has loaded it; nothing here starts CUDA."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


@cache
def driver() -> Any:
    """The driver's library, or None where it cannot be loaded."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
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
