"""A sink that appends to one file with one ``os.write`` a record.

The kernel has the bytes when ``write`` returns, so whatever then kills the process loses none of them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from firstfault.record.layout import PRIVATE_FILE, PRIVATE_FOLDER

_LONGEST_LINE = 2**20


class AppendFile:
    """An append-only file, readable by its owner alone, that several processes may share."""

    def __init__(self, path: Path) -> None:
        """Open or create ``path`` and its folder.

        Raises:
            OSError: it cannot be opened for appending.
        """
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        self.started_at = os.fstat(self._fd).st_size
        """Size when it was opened, in bytes: what others had written already."""
        self._torn = False

    def write(self, data: bytes) -> None:
        """Append ``data`` whole.

        Raises:
            OSError: the system refused some of it (a full disk); the torn line is closed on the next write.
        """
        if self._torn:
            data = b"\n" + data
        written = os.write(self._fd, data)
        self._torn = written < len(data)
        if self._torn:
            self._rest(data[written:])

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
        """Give the descriptor back."""
        os.close(self._fd)

    def _rest(self, data: bytes) -> None:
        """A short write: the disk is filling up, or the data is beyond what one call takes (2 GiB)."""
        while data:
            data = data[os.write(self._fd, data) :]
        self._torn = False
