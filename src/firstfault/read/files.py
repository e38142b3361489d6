"""Opening what lies at a path that others filled: regular files only, and never more of them than was meant.

    open_regular(Path("dumps/…/metadata.json"))

A FIFO, a device or a socket where a file should be would block the reader for ever, or give without end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from firstfault.errors import UnreadableInput


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or what a symbolic link to one leads to, for reading.

    Raises:
        UnreadableInput: it cannot be opened, or is no regular file.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to does not wait. For regular files it changes nothing.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"cannot read {path}: {reason(error)}") from error
    file = os.fdopen(descriptor, "rb") if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if file is None:
        os.close(descriptor)
        raise UnreadableInput(f"cannot read {path}: it is not a regular file")
    return file


def read_whole(path: Path, largest: int) -> bytes:
    """All bytes of a regular file.

    Raises:
        UnreadableInput: it cannot be read, or holds more than ``largest`` bytes.
    """
    with open_regular(path) as file:
        data = _read(file, path, largest + 1)
    if len(data) > largest:
        raise UnreadableInput(f"cannot read {path}: it holds more than the {largest} bytes that such a file may have")
    return data


def read_end(path: Path, most: int) -> bytes:
    """The last ``most`` bytes of a regular file.

    Raises:
        UnreadableInput: it cannot be read.
    """
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return _read(file, path, most)


def is_regular(path: Path) -> bool:
    """Whether ``path`` leads to a regular file; False where that cannot be found out."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """Whether something lies at ``path``, be it a broken or circular link."""
    return os.path.lexists(path)


def reason(error: OSError | ValueError) -> str:
    """What went wrong, without the path, which the message names already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _read(file: BinaryIO, path: Path, count: int) -> bytes:
    try:
        return file.read(count)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {reason(error)}") from error
