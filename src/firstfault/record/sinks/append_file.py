"""A sink that appends to one file with one ``os.write`` a record.

The kernel has the bytes when ``write`` returns, so whatever then kills the process loses none of them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from firstfault.record.layout import PRIVATE_FILE, PRIVATE_FOLDER
from firstfault.record.sinks.descriptors import HIGH, close_own, identity, is_own, raised

_LONGEST_LINE = 2**20


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for its owner alone.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        with suppress(FileExistsError):
            os.mkdir(folder, PRIVATE_FOLDER)


class AppendFile:
    """An append-only file, readable by its owner alone, that several processes may share."""

    def __init__(self, path: Path) -> None:
        """Open or create ``path`` and its folder.

        Raises:
            OSError: it cannot be opened for appending.
        """
        make_private(path.parent)
        self.path = path.absolute()  # the program may change its folder
        self.is_new = True
        """Whether it was made here, and not by another process that writes to it as well."""
        try:
            self._open(os.O_EXCL)
        except FileExistsError:
            self.is_new = False
            self._open()
        self._torn = False

    def write(self, data: bytes) -> None:
        """Append ``data`` whole.

        Raises:
            OSError: the system refused some of it (a full disk); the torn line is closed on the next write.
        """
        if self._torn:
            data = b"\n" + data
        if self._fd < HIGH and not is_own(self._fd, self._file):
            self._open()
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            if error.errno != errno.EBADF:  # the program has closed it, with all that it did not open itself
                raise
            self._open()
            written = os.write(self._fd, data)
        self._torn = written < len(data)
        if self._torn:
            self._rest(data[written:])

    def finish(self, data: bytes) -> None:
        """Append the rest of a line of which another has written the begin to ``shared_fd``.

        Raises:
            OSError: the system refused it; the torn line is closed on the next write.
        """
        self._torn = True
        self._rest(data)

    @property
    def shared_fd(self) -> int:
        """The descriptor, for another to append whole lines to as well; -1 where each write must be seen to here."""
        return self._fd if self._fd >= HIGH and not self._torn else -1

    def write_last(self, data: bytes) -> int:
        """Write lines in the place of the last ones: what a full disk still allows in a file of one's own.

        Returns:
            How many whole lines gave way.

        Raises:
            OSError: there is no room even so.
        """
        with open(self.path, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(data) - _LONGEST_LINE))
            end = file.read()
            cut = end.rfind(b"\n", 0, max(0, len(end) - len(data))) + 1
            if cut == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.seek(cut - len(end), os.SEEK_END)
            file.write(data)
            file.truncate()
        self._torn = False
        return end.count(b"\n", cut)

    def close(self) -> None:
        """Give the descriptor back, if it is still this file's."""
        close_own(self._fd, self._file)

    def _open(self, how: int = 0) -> None:
        """Open the file on a high descriptor: a program that closes all of them will reuse the low ones."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | how
        self._fd = raised(os.open(self.path, flags, PRIVATE_FILE))
        self._file = identity(self._fd)

    def _rest(self, data: bytes) -> None:
        """A short write: the disk is filling up, or the data is beyond what one call takes (2 GiB)."""
        while data:
            data = data[os.write(self._fd, data) :]
        self._torn = False
