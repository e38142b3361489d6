"""Statistics without waiting: the device reads a tensor when it gets there, and the record takes that in later.

    call 9 described       statistics=[pending: …], token 17
    the device gets there  entry 17 of the statistics page is complete
    a later call begins    a ``statistics`` record: token 17, -3.9 … 4.1

The page lies in shared memory, so what the device had read is there after a crash too. Nothing here waits,
except that a process which ends by itself gives its device a second to get done.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from firstfault.capture import device_stats, progress, stats
from firstfault.capture.describe import Found, PathKey
from firstfault.record import layout, statistics_page
from firstfault.record.layout import PRIVATE_FILE
from firstfault.record.statistics_page import ENTRIES, PAGE_BYTES, RESULT_OFFSET, Statistics, Values

PENDING = "[pending: the device has not got there]"
FAR_BEHIND = "[skipped: the device is too far behind]"
NOT_WITHOUT_WAITING = "[skipped: it cannot be read without waiting for the device]"
SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.002


class Pending(NamedTuple):
    """A tensor whose reading is enqueued.

    Attributes:
        token: names it.
        slot: of its entry in the page.
        call, op, side: what it was given to or came from.
        path: where it is among the arguments or in the result.
    """

    token: int
    slot: int
    call: int
    op: str
    side: str
    path: tuple[PathKey, ...]
    values: Values


class Launch(NamedTuple):
    """A launch to come; ``first`` is the first of its entries, which lie next to each other."""

    lane: device_stats.Lane
    place: tuple[int, int]
    kernel: device_stats.Kernel
    grid: tuple[int, int]
    first: int


class DeferredStatistics:
    """The statistics page of this process."""

    def __init__(self, folder: Path, reader: device_stats.Reader) -> None:
        """Make the page for the process whose folder in the recording is ``folder``, and register it.

        Raises:
            MarkersUnavailable: shared memory or the driver refused.
        """
        self.path = layout.statistics_page(folder)
        self._folder = folder.absolute()
        self._reader = reader
        self._page = progress.shared_page(self.path, PAGE_BYTES)
        header = statistics_page.header(os.getpid(), time.time_ns(), str(self._folder))
        self._page[: len(header)] = header
        self._view = memoryview(self._page)
        page = reader.driver.register(device_stats.address_of(self._page), PAGE_BYTES)
        self._results = page + statistics_page.entry_offset(0) + RESULT_OFFSET
        asked = mmap.mmap(-1, ENTRIES * device_stats.REQUEST.size)
        self._asked = memoryview(asked)
        self._requests_host = device_stats.address_of(asked)
        self._requests = reader.driver.register(self._requests_host, len(asked))
        self._arguments = device_stats.Arguments()
        self._tokens = itertools.count(1)
        self._cursor = 0
        self._busy = bytearray(ENTRIES)
        self._pending: dict[tuple[int, int], deque[Pending]] = {}
        self._lock = threading.Lock()

    def ask(self, found: list[Found], call: int, op: str, side: str) -> list[Launch]:
        """Read what lies on the host, and say in the descriptions of the rest that the device has yet to read it.

        Returns:
            What ``start`` is to enqueue once the call has been written down.
        """
        readable = stats.within_reach(found)
        on_host = [item for item in readable if not item.tensor.is_cuda]
        if on_host:
            contiguous = [item.described.contiguous for item in on_host]
            for item, read in zip(on_host, stats.read_all([item.tensor for item in on_host], contiguous), strict=True):
                stats.fill(item.described, read)
        place = self._reader.driver.current()
        most_parts = self._reader.most_parts(place[0])
        asked: list[tuple[Found, int, device_stats.Request]] = []
        for index, item in enumerate(found):
            described = item.described
            if described.statistics is not None or not item.tensor.is_cuda:
                continue
            described.statistics = stats.nothing_to_read(item.tensor, contiguous=described.contiguous)
            if described.statistics is None:
                request = self._reader.request(item.tensor, place[0], most_parts)
                if request is None:
                    described.statistics = NOT_WITHOUT_WAITING
                else:
                    asked.append((item, index, request))
        most = device_stats.MOST_TENSORS
        parts = [asked[first : first + most] for first in range(0, len(asked), most)]
        launches = (self._launch(part, place, call, op, side) for part in parts)
        return [launch for launch in launches if launch is not None]

    def start(self, launches: list[Launch]) -> None:
        """Enqueue the reading of what was asked for. A dead context takes none: that stays pending, as it is."""
        for lane, place, kernel, grid, first in launches:
            requests, results = first * device_stats.REQUEST.size, first * statistics_page.ENTRY_BYTES
            with self._lock:
                at = (self._requests + requests, self._requests_host + requests)
                asked = self._reader.asked(lane, at, grid, place[1])
                arguments = self._arguments.set(asked, self._results + results, lane.scratch)
                self._reader.driver.launch(kernel, grid, place[1], arguments)

    def completed(self) -> list[tuple[Pending, Statistics]]:
        """What the device has read since the last time."""
        if not self._pending:
            return []
        with self._lock:
            return [each for pending in self._pending.values() for each in self._taken(pending)]

    def close(self) -> list[tuple[Pending, Statistics]]:
        """Give the device a moment, and take in what it has read; unless that is all, leave the page to readers."""
        deadline = time.monotonic() + SETTLE_SECONDS
        completed = self.completed()
        while self._waits() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            completed += self.completed()
        if self._waits():
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            fd = os.open(self._folder / layout.STATISTICS, flags, PRIVATE_FILE)
            try:
                os.write(fd, self._page[:])
            finally:
                os.close(fd)
        self.path.unlink(missing_ok=True)
        return completed

    def _waits(self) -> bool:
        return any(self._pending.values())

    def _launch(
        self,
        asked: Sequence[tuple[Found, int, device_stats.Request]],
        place: tuple[int, int],
        call: int,
        op: str,
        side: str,
    ) -> Launch | None:
        """One launch, for at most as many tensors as one takes."""
        requests = [request for _, _, request in asked]
        lane = self._reader.lane(place)
        kernel = self._reader.kernel(place[0], requests)
        with self._lock:
            first = self._slots(len(asked)) if lane is not None else None
            if lane is None or first is None:
                for item, _, _ in asked:
                    item.described.statistics = FAR_BEHIND if lane is not None else NOT_WITHOUT_WAITING
                return None
            pending = self._pending.setdefault(place, deque())
            for slot, (item, index, request) in enumerate(asked, first):
                token = next(self._tokens)
                statistics_page.write_entry(self._view, slot, token, call, side, index, request.values)
                device_stats.pack(self._asked, slot * device_stats.REQUEST.size, request, token)
                pending.append(Pending(token, slot, call, op, side, item.path, request.values))
                item.described.statistics, item.described.token = PENDING, token
        return Launch(lane, place, kernel, (max(request.parts for request in requests), len(requests)), first)

    def _slots(self, count: int) -> int | None:
        """The first of ``count`` entries next to each other; None where the device has yet to complete one of them."""
        first = self._cursor if self._cursor + count <= ENTRIES else 0
        self._cursor = first + count
        if any(self._busy[first : first + count]):
            return None
        self._busy[first : first + count] = b"\1" * count
        return first

    def _taken(self, pending: deque[Pending]) -> Iterator[tuple[Pending, Statistics]]:
        """The completed entries of one stream, in the order that they were enqueued."""
        while pending:
            each = pending[0]
            result = statistics_page.read_result(self._view, statistics_page.entry_offset(each.slot) + RESULT_OFFSET)
            if result.token != each.token:
                return
            pending.popleft()
            self._busy[each.slot] = 0
            yield each, statistics_page.understood(result, each.values)
