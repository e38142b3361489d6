"""Statistics without waiting: the device reads a tensor when it gets there, and a reader puts that in its place.

    call 9 described       statistics=[pending: …], token 17
    the device gets there  entry 17 of the statistics page is complete
    half of the page used  its entries are appended to statistics.bin in the recording

The page lies in shared memory, so what the device had read is there after a crash too. Nothing here waits,
except that a process which ends by itself gives its device a second to get done. What is read at the replay of a
CUDA graph goes through the page too, be it waited for or not.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from firstfault.capture import compiled, device_stats, progress, stats
from firstfault.capture.describe import Found, PathKey
from firstfault.capture.tripwire import Tripwire
from firstfault.errors import tell
from firstfault.record import layout, statistics_page
from firstfault.record.layout import PRIVATE_FILE
from firstfault.record.statistics_page import ENTRIES, PAGE_BYTES, RESULT_OFFSET, Values

PENDING = "[pending: the device has not got there]"
FAR_BEHIND = "[skipped: the device is too far behind]"
NOT_WITHOUT_WAITING = "[skipped: it cannot be read without waiting for the device]"
SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.002
_HALF = ENTRIES // 2
_WORDS = statistics_page.ENTRY_BYTES // 8
"""Of an entry, and of a request."""
_NUMEL = 2
_LOOKS = 100
"""At entries, before the driver is asked to wait: that takes 10 to 100 µs by itself."""
_RESULT_TOKEN = (RESULT_OFFSET + statistics_page.TOKEN_OFFSET) // 8
_KEPT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Launch(NamedTuple):
    """A launch to come; ``first`` is the first of its entries, which lie next to each other."""

    lane: device_stats.Lane
    place: tuple[int, int]
    kernel: device_stats.Kernel
    grid: tuple[int, int]
    first: int


class Side(NamedTuple):
    """One side of a call: its number, its operator, and which side; ``replay`` of a graph that it was captured into."""

    call: int
    op: str
    side: str
    replay: int = 0


class Reading(NamedTuple):
    """A tensor that the device is to read."""

    side: Side
    path: tuple[PathKey, ...]
    values: Values


class Entries(NamedTuple):
    """Entries next to each other.

    Attributes:
        first: the slot of the first.
        token: its token; those that follow have the next ones.
        requests: where the host has written what to read.
    """

    first: int
    token: int
    requests: int


class EntriesLeft:
    """Which entries are to be had; ``crossing/readings.c`` has the same for both."""

    def __init__(self) -> None:
        self.next = 0
        self._end = 0
        self._token = 1
        self._launching = threading.Lock()

    def take(self, count: int) -> tuple[int, int] | None:
        """The first of ``count`` entries next to each other, and its token; None where there are fewer."""
        if self._end - self.next < count:
            return None
        taken = self.next, self._token
        self.next += count
        self._token += count
        return taken

    def move(self, first: int, end: int) -> int:
        """Have entries from ``first`` to before ``end`` from now on; the next of those until now."""
        left, self.next, self._end = self.next, first, end
        return left

    def begin_launch(self) -> None:
        """Let nobody else launch: a copied request is the launch's that follows."""
        self._launching.acquire()

    def end_launch(self) -> None:
        """Let others launch."""
        self._launching.release()


class _Watched(NamedTuple):
    """An entry that the tripwire waits for."""

    slot: int
    token: int
    reading: Reading


class DeferredStatistics:
    """The statistics page of this process."""

    def __init__(
        self, folder: Path, reader: device_stats.Reader, tripwire: Tripwire | None = None, *, ring: bool = False
    ) -> None:
        """Make the page for the process whose folder in the recording is ``folder``, and register it.

        Args:
            folder: of the process.
            reader: what launches the kernel.
            tripwire: told of NaN.
            ring: whether the recording keeps no more than the last calls, so that the page is all that is kept.

        Raises:
            MarkersUnavailable: shared memory or the driver refused.
            Unavailable: there is no kernel for this device.
        """
        reader.kernel(reader.driver.current()[0], ())
        self.path = layout.statistics_page(folder)
        self._kept = folder.absolute() / layout.STATISTICS
        self.reader = reader
        self._tripwire = tripwire
        self._ring = ring
        self._page = progress.shared_page(self.path, PAGE_BYTES)
        self._header = statistics_page.header(os.getpid(), time.time_ns(), str(folder.absolute()))
        self._page[: len(self._header)] = self._header
        self._view = memoryview(self._page)
        page = reader.driver.register(device_stats.address_of(self._page), PAGE_BYTES)
        self._results = page + statistics_page.entry_offset(0) + RESULT_OFFSET
        asked = progress.private_page(ENTRIES * device_stats.REQUEST.size)
        self._asked = memoryview(asked)
        self._requests_host = device_stats.address_of(asked)
        self._requests = reader.driver.register(self._requests_host, len(asked))
        self._arguments = device_stats.Arguments()
        self._page_words = self._view[statistics_page.HEADER_BYTES :].cast("q")
        self._asked_words = self._asked.cast("q")
        self._entries = EntriesLeft() if compiled.crossing is None else compiled.crossing.Entries()
        self._entries.move(0, _HALF)
        self._half = 0
        """Which is in use."""
        self._unkept = [0, 0]
        """Of each half, while the other is in use: how many of its entries are used and not in the recording."""
        self._watched: dict[tuple[int, int], deque[_Watched]] = {}
        self._lock = threading.Lock()

    def ask(self, found: list[Found], side: Side) -> list[Launch]:
        """Read what lies on the host, and say in the descriptions of the rest that the device has yet to read it.

        Returns:
            What ``start`` is to enqueue once the call has been written down.
        """
        readable = stats.within_reach(found)
        on_device = []
        for item in readable:
            described = item.described
            if not lies_there(item.tensor):
                stats.fill(described, stats.read(item.tensor, contiguous=described.contiguous))
            else:
                described.statistics = stats.nothing_to_read(item.tensor, contiguous=described.contiguous)
                if described.statistics is None:
                    on_device.append(item)
        if not on_device:
            return []
        place = self.reader.driver.current()
        wanted: list[tuple[Found, device_stats.Request]] = []
        for item, request in zip(
            on_device, self.reader.requests([item.tensor for item in on_device], place[0]), strict=True
        ):
            if request is None:
                item.described.statistics = NOT_WITHOUT_WAITING
            else:
                wanted.append((item, request))
        most = device_stats.MOST_TENSORS
        launches = [self._launch(wanted[at : at + most], place, side, at) for at in range(0, len(wanted), most)]
        return [launch for launch in launches if launch is not None]

    def in_c(self) -> dict[str, Any]:
        """What C needs to ask for readings as ``ask`` and ``start`` do."""
        numbers = (device_stats.MOST_TENSORS, device_stats.MANY_PARTS, device_stats.THREADS, device_stats.SCRATCH_BYTES)
        return {
            "entries": self._entries,
            "page": device_stats.address_of(self._page) + statistics_page.entry_offset(0),
            "results": self._results,
            "asked": self._requests_host,
            "requests": self._requests,
            "driver": self.reader.driver.addresses(),
            "numbers": numbers,
        }

    def start(self, launches: list[Launch]) -> None:
        """Enqueue the reading of what was asked for. A dead context takes none: that stays pending, as it is."""
        for lane, place, kernel, grid, first in launches:
            requests = first * device_stats.REQUEST.size
            with self._lock, self._launch_alone():
                at = (self._requests + requests, self._requests_host + requests)
                asked = self.reader.asked(lane, at, grid, place[1])
                arguments = self._arguments.set(asked, lane.scratch)
                self.reader.driver.launch(kernel, grid, place[1], arguments)

    @contextmanager
    def _launch_alone(self) -> Iterator[None]:
        self._entries.begin_launch()
        try:
            yield
        finally:
            self._entries.end_launch()

    def wait(self, launches: list[Launch]) -> None:
        """Wait for what was enqueued."""
        for _, place, _, grid, first in launches:
            if not self._arrive(first, first + grid[1]):
                self.reader.driver.wait(place[1])

    def _arrive(self, first: int, last: int) -> bool:
        """Whether entries are complete while we look."""
        return any(statistics_page.complete(self._view, first, last) for _ in range(_LOOKS))

    def enter(
        self,
        place: tuple[int, int],
        entries: memoryview,
        requests: memoryview,
        unread: Collection[int],
        readings: Iterable[Reading],
    ) -> Entries | None:
        """Take entries for all that a graph reads at one replay; None while there is no room for them.

        Args:
            place: the device and stream of the replay.
            entries: what the host writes into them, in words, but for the tokens.
            requests: what to read, in words, but for the tokens and where the results go.
            unread: which of them are left out.
            readings: what they are.
        """
        count = len(entries) // _WORDS
        with self._lock:
            taken = self._take(count)
            if taken is None:
                return None
            first, token = taken
            of_page = self._page_words[first * _WORDS : (first + count) * _WORDS]
            of_page[:] = entries
            of_page[::_WORDS] = tokens = array("q", range(token, token + count))
            asked = self._asked_words[first * _WORDS : (first + count) * _WORDS]
            asked[:] = requests
            asked[device_stats.TOKEN_WORD :: _WORDS] = tokens
            results = self._results + first * statistics_page.ENTRY_BYTES
            ends = range(results, results + count * statistics_page.ENTRY_BYTES, statistics_page.ENTRY_BYTES)
            asked[device_stats.RESULT_WORD :: _WORDS] = array("q", ends)
            for index in unread:  # complete, for nobody to wait for, and of no values
                of_page[index * _WORDS + _NUMEL] = 0
                of_page[index * _WORDS + _RESULT_TOKEN] = token + index
            if self._tripwire is not None:
                for index, reading in enumerate(readings):
                    if index not in unread:
                        self._watch(place, first + index, token + index, reading)
        return Entries(first, token, self._requests_host + first * device_stats.REQUEST.size)

    def result(self, slot: int, token: int, values: Values) -> statistics_page.Statistics | None:
        """What the device has written into an entry; None where it did not get there."""
        at = statistics_page.entry_offset(slot) + RESULT_OFFSET
        if statistics_page.read_token(self._view, at) != token:
            return None
        return statistics_page.read_result(self._view, at, values)

    def look(self) -> None:
        """Show the tripwire what the device has read since the last time."""
        if self._tripwire is None:
            return
        with self._lock:
            for waiting in self._watched.values():
                self._look(self._tripwire, waiting)

    def close(self) -> None:
        """Give the device a moment, and leave what it has read in the recording; nothing can be asked any more."""
        deadline = time.monotonic() + SETTLE_SECONDS
        self._leave_half(ENTRIES, ENTRIES)
        used = [(half * _HALF, half * _HALF + count) for half, count in enumerate(self._unkept)]
        while not all(statistics_page.complete(self._view, *part) for part in used) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.look()
        for half in sorted((0, 1), key=self._first_token):
            self._keep(half)
        self.path.unlink(missing_ok=True)

    def _launch(
        self, wanted: list[tuple[Found, device_stats.Request]], place: tuple[int, int], side: Side, index: int
    ) -> Launch | None:
        """One launch, for at most as many tensors as one takes; ``index`` is that of the first."""
        requests = [request for _, request in wanted]
        try:
            lane = self.reader.lane(place)
            kernel = self.reader.kernel(place[0], requests)
        except (device_stats.Unavailable, progress.MarkersUnavailable):
            lane = None
        if lane is None:
            _leave(wanted, NOT_WITHOUT_WAITING)
            return None
        with self._lock:
            taken = self._take(len(wanted))
            if taken is None:
                _leave(wanted, FAR_BEHIND)
                return None
            first, token_of_first = taken
            for slot, (item, request) in enumerate(wanted, first):
                token = token_of_first + slot - first
                values = request[1].values
                statistics_page.write_entry(self._view, slot, token, side.call, side.side, index + slot - first, values)
                result = self._results + slot * statistics_page.ENTRY_BYTES
                device_stats.pack(self._asked, slot * device_stats.REQUEST.size, request, token, result)
                item.described.statistics, item.described.token = PENDING, token
                if self._tripwire is not None:
                    self._watch(place, slot, token, Reading(side, item.path, values))
        return Launch(lane, place, kernel, device_stats.grid_of(requests), first)

    def _take(self, count: int) -> tuple[int, int] | None:
        """The first of ``count`` entries next to each other in one half, and its token; None while there are none."""
        taken: tuple[int, int] | None = self._entries.take(count)
        if taken is None and self._begin_half():
            taken = self._entries.take(count)
        return taken

    def _begin_half(self) -> bool:
        """Go on in the other half, once what is in it lies in the recording; False while it is not complete."""
        half = 1 - self._half
        if self._unkept[half]:
            if not statistics_page.complete(self._view, half * _HALF, half * _HALF + self._unkept[half]):
                return False
            if self._tripwire is not None:
                for waiting in self._watched.values():
                    self._look(self._tripwire, waiting)
            if not self._ring:
                self._keep(half)
        self._leave_half(half * _HALF, (half + 1) * _HALF)
        self._half = half
        return True

    def _leave_half(self, first: int, end: int) -> None:
        """Have entries from ``first`` to before ``end`` in the place of those of the half in use."""
        self._unkept[self._half] = self._entries.move(first, end) - self._half * _HALF

    def _watch(self, place: tuple[int, int], slot: int, token: int, reading: Reading) -> None:
        self._watched.setdefault(place, deque()).append(_Watched(slot, token, reading))

    def _first_token(self, half: int) -> int:
        return statistics_page.entry_token(self._view, half * _HALF)

    def _keep(self, half: int) -> None:
        """Append the entries of half of the page to the file in the recording."""
        count, self._unkept[half] = self._unkept[half], 0
        try:
            if count:
                self._append(half, count)
        except OSError as error:
            tell(f"cannot write to {self._kept} ({error.strerror}); {count} statistics are lost")

    def _append(self, half: int, count: int) -> None:
        fd = os.open(self._kept, _KEPT_FLAGS, PRIVATE_FILE)
        try:
            begin = statistics_page.entry_offset(half * _HALF)
            entries = self._page[begin : begin + count * statistics_page.ENTRY_BYTES]
            size = os.fstat(fd).st_size
            data = entries if size else self._header.ljust(statistics_page.HEADER_BYTES, b"\0") + entries
            if os.write(fd, data) < len(data):  # a disk that is full: what follows must not be out of step
                os.ftruncate(fd, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)

    def _look(self, tripwire: Tripwire, waiting: deque[_Watched]) -> None:
        while waiting:
            slot, token, (side, path, values) = waiting[0]
            found = self.result(slot, token, values)
            if found is None:
                return
            waiting.popleft()
            tripwire.see(side.call, side.op, side.side, path, found.nan_count, side.replay)


def lies_there(tensor: torch.Tensor) -> bool:
    """Whether the device can read a tensor."""
    return bool(tensor.is_cuda)


def device_of(tensor: torch.Tensor) -> int:
    """The number of the device that a tensor lies on."""
    return tensor.get_device()


def _leave(wanted: list[tuple[Found, device_stats.Request]], reason: str) -> None:
    """Say why tensors are not read."""
    for item, _ in wanted:
        item.described.statistics = reason
