"""A sink of segment files, ``calls.0001.jsonl`` and on, each beginning with the header line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from firstfault.record import layout
from firstfault.record.sinks.append_file import AppendFile

SEGMENT_BYTES = 64 * 2**20


class Appender:
    """The file that is written to, for one who appends lines to it beside ``Segments``; -1 for none."""

    def __init__(self) -> None:
        self.fd = -1
        self.size = 0
        self.limit = 0
        self.stretch = 0

    def open(self, fd: int, size: int, limit: int, stretch: int) -> None:
        """Let others append up to a size, to a stretch of lines."""
        self.fd, self.size, self.limit, self.stretch = fd, size, limit, stretch

    def close(self) -> None:
        """Let no other append any more."""
        self.fd = -1


class Segments:
    """Append-only segments in one folder; a new one begins when the last has reached its size."""

    def __init__(
        self,
        folder: Path,
        header: Callable[[int], bytes],
        segment_bytes: int = SEGMENT_BYTES,
        appender: Callable[[], Appender] = Appender,
    ) -> None:
        """Begin the first segment in ``folder``; ``header(index)`` gives a segment's first line.

        Raises:
            OSError: the folder or file cannot be made.
        """
        self.folder = folder
        self._header = header
        self._segment_bytes = segment_bytes
        self._index = 0
        self.stretch = 0
        """Number of the lines that are written to: of a segment, up to where some were taken out of it again."""
        self._file: AppendFile | None = None
        self._before: AppendFile | None = None
        self._rolling = threading.Lock()
        self.appender = appender()
        self._begin()

    def write(self, data: bytes) -> None:
        """Append ``data``; it is never split over two segments.

        Raises:
            OSError: the system refused some of it.
        """
        if self._is_full(len(data)):
            with self._rolling:
                if self._is_full(len(data)):  # no other thread has just begun the next one
                    self._begin()
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError:
            self.appender.close()
            raise
        self._share(self.appender.size + len(data))

    def finish(self, data: bytes) -> None:
        """Append the rest of a line of which another has written the begin.

        Raises:
            OSError: the system refused it.
        """
        assert self._file is not None
        self.appender.close()
        self._file.finish(data)
        self._share(self.appender.size + len(data))

    def write_last(self, data: bytes) -> int:
        """Write lines in the place of the last ones of this segment, where the disk has no room for more.

        Returns:
            How many whole lines gave way.

        Raises:
            OSError: there is no room even so.
        """
        assert self._file is not None
        self.stretch += 1
        return self._file.write_last(data)

    def close(self) -> None:
        """Give the descriptors back."""
        self.appender.close()
        for file in (self._before, self._file):
            if file is not None:
                file.close()

    def _is_full(self, size: int) -> bool:
        return self.appender.size + size > self._segment_bytes and self.appender.size > self._header_size

    def _begin(self) -> None:
        """Open the next segment; the last one stays in use should that fail."""
        header = self._header(self._index + 1)
        following = AppendFile(layout.segment(self.folder, self._index + 1))
        try:
            following.write(header)
        except OSError:  # a later attempt must not find half a header
            following.close()
            following.path.unlink(missing_ok=True)
            raise
        if self._before is not None:
            self._before.close()
        self._before, self._file = self._file, following  # another thread may be writing to the last one
        self._index += 1
        self.stretch += 1
        self._header_size = len(header)
        self._share(len(header))

    def _share(self, size: int) -> None:
        """Let others append to the file, which has this size by now."""
        assert self._file is not None
        self.appender.open(self._file.shared_fd, size, self._segment_bytes, self.stretch)
