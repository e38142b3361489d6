"""Descriptors in a program that may close every one that it did not open itself, and reuse their numbers."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

HIGH = 512
"""Numbers from here on are seldom reused: a new descriptor gets the lowest that is free."""


def raised(fd: int) -> int:
    """A descriptor moved to a high number, where the system allows one: programs that close all reuse the low ones."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError:  # above the limit of this process
        return fd
    os.close(fd)
    return high


def identity(fd: int) -> tuple[int, int]:
    """What tells the file of a descriptor from others."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def is_own(fd: int, file: tuple[int, int]) -> bool:
    """Whether a descriptor is still that of ``file``, and not closed or another's by now."""
    with suppress(OSError):
        return identity(fd) == file
    return False


def close_own(fd: int, file: tuple[int, int]) -> None:
    """Close a descriptor if it is still that of ``file``."""
    if is_own(fd, file):
        os.close(fd)
