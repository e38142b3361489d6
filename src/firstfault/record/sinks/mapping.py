"""A new file mapped into memory, whose descriptor is out of the program's way.

``mmap.mmap`` keeps one of its own, the lowest that is free, and closes that number in the end: a program that has
closed all descriptors meanwhile may have a file of its own there.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from firstfault.record.layout import PRIVATE_FILE
from firstfault.record.sinks.descriptors import close_own, identity, raised

_SHARED_WRITABLE = 3  # PROT_READ | PROT_WRITE
_MAP_SHARED = 1
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Mapping:
    """A file of zeros, as memory."""

    def __init__(self, path: Path, size: int) -> None:
        """Make the file; its blocks are taken at once, for a hole that cannot be filled is a SIGBUS.

        Raises:
            OSError: it cannot be made, has no room, or cannot be mapped.
        """
        self._fd = raised(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
        self._file = identity(self._fd)
        self.size = size
        try:
            os.posix_fallocate(self._fd, 0, size)
            self.address = _libc.mmap(None, size, _SHARED_WRITABLE, _MAP_SHARED, self._fd, 0)
            if self.address == _FAILED:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except BaseException:
            close_own(self._fd, self._file)
            path.unlink(missing_ok=True)
            raise
        self.view = memoryview((ctypes.c_char * size).from_address(self.address)).cast("B")

    def close(self) -> None:
        """Unmap it. Until then its descriptor is open: it tells others that the file is in use."""
        self.view.release()
        _libc.munmap(self.address, self.size)
        close_own(self._fd, self._file)
