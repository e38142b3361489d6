"""A sink of few, small segments of which the oldest gives way: constant disk, for a recorder that stays on.

Segments are preallocated and mapped, so a record is a copy into shared memory: 0.3 µs, where a ``write`` takes
1.5 to 5. The kernel has the bytes all the same once they are copied, whatever then kills the process. What
follows the last record in a segment that its process could not close is zeros.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from firstfault.record import layout
from firstfault.record.sinks.append_file import make_private
from firstfault.record.sinks.mapping import Mapping

SEGMENTS = 8
"""Segments that are kept, the one that is written to included."""


class Cursor:
    """Where the next record goes: the segment that is written to, and its end."""

    def __init__(self) -> None:
        self._view: memoryview | None = None
        self._segment = 0
        self.end = 0
        self._moving = threading.Lock()

    def open(self, mapping: Mapping, end: int, segment: int) -> None:
        """Write to a segment from its ``end`` on."""
        with self._moving:
            self._view, self.end, self._segment = mapping.view, end, segment

    def append(self, data: bytes, segment: int) -> bool:
        """Append ``data`` to a segment if that is the one that is written to and has room; whether that was so."""
        with self._moving:
            begin = self.end
            end = begin + len(data)
            if self._view is None or segment != self._segment or end > len(self._view):
                return False
            self._view[begin:end] = data
            self.end = end
        return True

    def close(self) -> int:
        """Write to none any more; where the last one ends."""
        with self._moving:
            self._view = None
            return self.end


class Ring:
    """The last segments of a process, together of a fixed size."""

    def __init__(
        self,
        folder: Path,
        header: Callable[[int], bytes],
        ring_bytes: int,
        cursor: Callable[[], Cursor] = Cursor,
    ) -> None:
        """Begin the first segment in ``folder``; ``header(index)`` gives a segment's first line, ``cursor`` its cursor.

        Raises:
            OSError: the folder or file cannot be made, or there is no room for it.
        """
        make_private(folder)
        self.folder = folder
        self.index = 0
        """Number of the segment that is written to, from 1."""
        self._header = header
        self._size = ring_bytes // SEGMENTS
        self._kept: deque[Path] = deque()
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._map: Mapping | None = None
        self.cursor = cursor()
        self.append = self.cursor.append
        self._begin()

    def write(self, data: bytes) -> None:
        """Append ``data``; it is never split over two segments.

        Raises:
            OSError: it is larger than a segment, the next segment cannot be made, or the ring is closed.
        """
        while not self.append(data, self.index):
            with self._writing:
                if self._map is None:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                if self.cursor.end + len(data) > self._size:  # no other thread has just begun the next one
                    self._begin()
                    if self.cursor.end + len(data) > self._size:
                        raise OSError(
                            errno.EFBIG, f"a record of {len(data)} bytes is larger than a segment of the ring"
                        )

    def write_last(self, data: bytes) -> int:
        """Write lines in the place of the last ones of this segment.

        Returns:
            How many whole lines gave way.

        Raises:
            OSError: there is no room even so.
        """
        with self._writing:
            if self._map is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            view, end = self._map.view, self.cursor.close()
            written = bytes(view[:end])
            cut = written.rfind(b"\n", 0, max(0, min(end, self._size - len(data)))) + 1
            if cut > 0:
                view[cut:end] = bytes(end - cut)
                view[cut : cut + len(data)] = data
            self.cursor.open(self._map, cut + len(data) if cut > 0 else end, self.index)
        if cut == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written.count(b"\n", cut)

    def close(self) -> None:
        """Unmap the segment; its own process also cuts off what was not used of it."""
        mapped, self._map = self._map, None
        end = self.cursor.close()
        if mapped is not None:
            mapped.close()
            if os.getpid() == self._pid:
                with suppress(OSError):
                    os.truncate(self._kept[-1], end)

    def _begin(self) -> None:
        """Open the next segment; the last one stays in use should that fail."""
        header = self._header(self.index + 1)
        while len(self._kept) >= SEGMENTS:
            self._kept.popleft().unlink(missing_ok=True)
        path = layout.segment(self.folder, self.index + 1)
        if self.index:
            path.unlink(missing_ok=True)  # of an attempt that a Ctrl-C has ended
        following = Mapping(path, self._size)
        following.view[: len(header)] = header
        self.close()
        self._map = following
        self._kept.append(path)
        self.index += 1
        self.cursor.open(following, len(header), self.index)
