"""What the kernels in a CUDA graph are asked for: rows of requests in device memory, none but for recorded replays.

    capture     rows 0 … 2 are read by one launch, rows 3 … 3 by the next
    a replay    the stream is given what they ask for, replays the graph, and is told to clear them

The memory is the driver's, none of torch's: a graph's pool stays as it would be without us.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from firstfault.capture import device_stats
from firstfault.capture.device_stats import REQUEST, Reader, Request

_BLOCK_ROWS = 512
_ROW_WORDS = REQUEST.size // 8


class Rows:
    """The requests of a graph's kernels of one kind, as they are at a recorded replay."""

    def __init__(self, driver: device_stats.Driver) -> None:
        self.sources = Sources()
        self.blocks: list[int] = []
        """The device memory that it has."""
        self._driver = driver
        self._packed = bytearray()

    def __len__(self) -> int:
        return len(self._packed) // REQUEST.size

    @property
    def words(self) -> memoryview:
        """All requests, one after the other, without their tokens and where their results go."""
        return memoryview(self._packed).cast("q")

    def add(self, requests: Sequence[tuple[Request, torch.UntypedStorage]], launch: Launch) -> int:
        """Capture as many launches as it takes to read from some storages; how many of the requests were captured."""
        done = 0
        while done < len(requests):
            used = len(self) % _BLOCK_ROWS
            some = requests[done : done + min(device_stats.MOST_TENSORS, _BLOCK_ROWS - used)]
            try:
                if not launch.capture(self._place(), [request for request, _ in some]):
                    break
            except device_stats.Unavailable:  # there is no memory
                break
            for (address, plan), storage in some:
                self.sources.add(len(self), storage)
                self._packed += REQUEST.pack(address, *plan.words, 0, 0)
            done += len(some)
        return done

    def _place(self) -> int:
        """Where the next row goes in device memory.

        Raises:
            Unavailable: there is none.
        """
        block, used = divmod(len(self), _BLOCK_ROWS)
        if block == len(self.blocks):
            self.blocks.append(self._driver.allocate(_BLOCK_ROWS * REQUEST.size))
        return self.blocks[block] + used * REQUEST.size

    def check(self) -> set[int]:
        """The rows whose memory the program has freed, which ask for nothing from now on."""
        for row in self.sources.check():
            self.words[row * _ROW_WORDS + device_stats.PARTS_WORD] = 0
        return self.sources.gone

    def ask(self, requests: int, stream: int) -> None:
        """Give a stream what the replay that follows is asked for, from registered memory of the host."""
        for first, block, size in self._pieces():
            self._driver.copy(block, requests + first, size, stream)

    def clear(self, stream: int) -> None:
        """Let the replays that follow be asked for nothing."""
        for _, block, size in self._pieces():
            self._driver.clear(block, size, stream)

    def _pieces(self) -> list[tuple[int, int, int]]:
        """Where each block begins among the requests, and in device memory, and how much of it is used, in bytes."""
        whole = _BLOCK_ROWS * REQUEST.size
        starts = range(0, len(self._packed), whole)
        return [
            (start, block, min(whole, len(self._packed) - start))
            for start, block in zip(starts, self.blocks, strict=True)
        ]


class Sources:
    """The storages that rows read: what lies outside of a graph's pool may be freed before the graph is."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._of: dict[int, int] = {}
        self.gone: set[int] = set()
        """Rows whose storage is no more, or lies elsewhere."""

    def add(self, row: int, storage: torch.UntypedStorage) -> None:
        """Note what a row reads."""
        known = StorageWeakRef(storage)
        self._of[row] = known.cdata
        self._storages.setdefault(known.cdata, (known, storage.data_ptr()))

    def keep_outside(self, pool: Sequence[tuple[int, int]]) -> None:
        """Leave those alone that lie in the graph's pool, from begin to end of each piece: it lives as long as that."""
        self._storages = {
            key: (known, address)
            for key, (known, address) in self._storages.items()
            if not any(begin <= address < end for begin, end in pool)
        }

    def check(self) -> list[int]:
        """The rows whose storage went since the last time."""
        freed = {key for key, (known, address) in self._storages.items() if not _is_there(known, address)}
        for key in freed:
            del self._storages[key]
        rows = [row for row, key in self._of.items() if key in freed] if freed else []
        self.gone.update(rows)
        return rows


def _is_there(known: StorageWeakRef, address: int) -> bool:
    """Whether a storage lives and lies where it did."""
    storage = torch.UntypedStorage._new_with_weak_ptr(known.cdata)
    return storage is not None and storage.data_ptr() == address


class Launch:
    """What captures launches of one graph on a stream; streams of a graph may run side by side."""

    def __init__(self, reader: Reader, place: tuple[int, int]) -> None:
        self.device, self._stream = place
        self.scratch = 0
        """Device memory for partial results, once there are any."""
        self._reader = reader
        self._arguments = device_stats.Arguments()

    def capture(self, address: int, requests: Sequence[Request]) -> bool:
        """Capture one launch, which reads its requests at ``address``; whether that could be done.

        Raises:
            Unavailable: there is no memory for it.
        """
        kernel = self._reader.loaded(self.device, requests)
        if kernel is None:
            return False
        grid = device_stats.grid_of(requests)
        if grid[0] > 1 and not self.scratch:
            self.scratch = self._reader.driver.allocate(device_stats.SCRATCH_BYTES)
        arguments = self._arguments.set(address, self.scratch)
        return self._reader.driver.launch(kernel, grid, self._stream, arguments)
