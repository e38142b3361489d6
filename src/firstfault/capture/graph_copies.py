"""Level 10 inside CUDA graphs: the tensors of captured calls, copied by the device at each replay, become dumps.

    20261129_101500_042_pid4711_append_call0017/    metadata.json: "graph": 1, "replay": 17, "call_number": 38
        inputs.pt     as they were before the call, at that replay
        outputs.pt    its results, and the arguments that it changed

The copies go straight to memory of the host that the device can write to, the arguments once before the call and
once after it: whether a call changes an argument in place can only be told by the bytes. What copies a range of bytes
says so when it is complete, so that after a crash the inputs of each call are there that the device had begun.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch

from firstfault.capture import archive, device_stats, dump, dump_keys, progress, snapshot
from firstfault.capture.describe import Found, PathKey
from firstfault.capture.device_stats import REQUEST, Reader, Request
from firstfault.capture.graph_rows import Launch, Rows
from firstfault.record import schema, statistics_page

NOT_IN_GRAPH = "it cannot be copied inside a CUDA graph"
MOST_COPIED = 2 * 2**30
"""Bytes that the replay of one graph copies, all of which the host holds at once."""
_HEAD = 64
"""Before each copy: the result that says that it is complete."""
_WORDS = REQUEST.size // 8

Source = int | torch.Tensor
"""What a saved tensor lies on: the number of a copy, or what lay on the host at the capture."""


class Taken(NamedTuple):
    """Tensors of one side of a captured call.

    Attributes:
        views: the tensors.
        sources: of the storages that they lie on.
        paths: where each tensor stands among the arguments or results, by its key.
        lost: reason by key of what is not copied.
    """

    views: tuple[archive.View, ...]
    sources: list[Source]
    paths: dict[str, tuple[PathKey, ...]]
    lost: dict[str, str]


class CopiedCall:
    """A captured call whose tensors are copied at each replay, once it has come back."""

    folder, nbytes = "", 0
    """Nothing is saved at the capture."""

    def __init__(self, copies: Copies, record: schema.Call, launch: Launch) -> None:
        self.record = record
        self.inputs = Taken((), [], {}, {})
        self.after: list[Source] = []
        self.outputs = Taken((), [], {}, {})
        self.result: schema.Value = None
        self._copies = copies
        self._launch = launch
        self._held: list[_Asked] = []

    def begin(self, found: list[Found], not_captured: int) -> None:
        """Capture the copies of its arguments.

        Raises:
            Skipped: they are too large, or the device cannot.
        """
        keyed = dict(dump_keys.by_key(found, dump_keys.input_key))
        self.inputs, self._held = self._copies.take(keyed, dump_keys.left_out("inputs", not_captured), self._launch)

    def finish(self, result: schema.Value, found: list[Found], not_captured: int) -> list[tuple[PathKey, ...]]:
        """Capture the copies of its results, and of its arguments once more; what it changes, each replay tells.

        Raises:
            Skipped: they are too large, or the device cannot.
        """
        keyed = dict(dump_keys.by_key(found, dump_keys.output_key))
        self.outputs, _ = self._copies.take(keyed, dump_keys.left_out("outputs", not_captured), self._launch)
        rows = itertools.count(self._copies.add(self._held, self._launch))
        self.after = [next(rows) if isinstance(source, int) else source for source in self.inputs.sources]
        self._held = []
        self.result = result
        self._copies.calls.append(self)
        return []

    def fail(self, error: BaseException) -> None:
        """It ended in an exception: no replay can run it to its end."""
        self._held = []


_Asked = tuple[Request, torch.UntypedStorage]


class Copies:
    """What is copied at the replays of one graph."""

    def __init__(self, reader: Reader, limit: int) -> None:
        """``limit`` is how many bytes all of it may take."""
        self.rows = Rows(reader.driver)
        self.calls: list[CopiedCall] = []
        self.places: list[int] = []
        """Where in a buffer each copy goes, behind its head."""
        self.sizes: list[int] = []
        self.nbytes = 0
        """What they take there."""
        self._most_parts = reader.most_parts
        self._limit = limit

    def take(self, keyed: dict[str, Found], lost: dict[str, str], launch: Launch) -> tuple[Taken, list[_Asked]]:
        """Capture the copies of some tensors; also what was asked for.

        Raises:
            Skipped: they are too large, or the device cannot.
        """
        planned = snapshot.plan((key, item) for key, item in keyed.items() if not is_lazy(item.tensor))
        ranges = [part for part in planned.ranges if isinstance(part, snapshot.Range)]
        ranges = [part for part in ranges if _can_be_copied(part, launch.device)]
        asked: list[_Asked] = []
        sources: list[Source] = []
        for part in ranges:
            if part.begin == part.end or _is_on_host(part.storage):
                sources.append(part.copy())
            else:
                sources.append(len(self.rows) + len(asked))
                address, nbytes = part.storage.data_ptr() + part.begin, part.end - part.begin
                asked.append(
                    (device_stats.copy_request(address, nbytes, self._most_parts(launch.device)), part.storage)
                )
        self.add(asked, launch)
        views = tuple(view for index, part in enumerate(ranges) for view in part.views(index))
        paths = {view.key: keyed[view.key].path for view in views}
        missing = {key: NOT_IN_GRAPH for key in keyed if key not in paths}
        return Taken(views, sources, paths, missing | planned.unreachable | lost), asked

    def add(self, asked: Sequence[_Asked], launch: Launch) -> int:
        """Capture copies; the number of the first.

        Raises:
            Skipped: they are too large, or the device cannot.
        """
        sizes = [plan.values.numel for (_, plan), _ in asked]
        nbytes = self.nbytes + sum(_HEAD + size + -size % _HEAD for size in sizes)
        if nbytes > self._limit:
            raise dump.Skipped(f"{nbytes} bytes of copies exceed the {self._limit} that one CUDA graph may have")
        first = len(self.rows)
        added = self.rows.add(asked, launch)
        for size in sizes[:added]:
            self.places.append(self.nbytes + _HEAD)
            self.sizes.append(size)
            self.nbytes += _HEAD + size + -size % _HEAD
        if added < len(asked):
            raise dump.Skipped(NOT_IN_GRAPH)
        return first


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor shares memory until it is written to: to ask where it lies would give it some of its own."""
    return tensor.layout is torch.strided and bool(torch._C._is_cow_tensor(tensor))  # type: ignore[attr-defined]


def _is_on_host(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu"


def _can_be_copied(part: snapshot.Range, device: int) -> bool:
    """Whether a range lies on the host, or on the device at an address that whole words can be read from."""
    if part.begin == part.end or _is_on_host(part.storage):
        return True
    return (
        part.members[0][1].get_device() == device and (part.storage.data_ptr() + part.begin) % snapshot.ALIGNMENT == 0
    )


class Buffer:
    """Memory of the host that the device writes the copies of one replay to, with the requests for them before it."""

    def __init__(self, driver: device_stats.Driver, size: int) -> None:
        self._page = progress.private_page(size)
        self.requests = device_stats.address_of(self._page)
        """Where the host has written them."""
        self.size = size
        self.view = memoryview(self._page)
        self._device = driver.register(self.requests, size)
        self._first = 0
        self._token = 0

    def fill(self, copies: Copies) -> None:
        """Write the requests of a replay."""
        count = len(copies.rows)
        self._first = count * REQUEST.size
        self._token += 1
        words = self.view[: self._first].cast("q")
        words[:] = copies.rows.words
        begin = self._device + self._first
        words[device_stats.TARGET_WORD :: _WORDS] = array("q", [begin + place for place in copies.places])
        words[device_stats.TOKEN_WORD :: _WORDS] = array("q", [self._token] * count)
        words[device_stats.RESULT_WORD :: _WORDS] = array("q", [begin + place - _HEAD for place in copies.places])

    def has(self, copies: Copies, source: Source) -> bool:
        """Whether a copy is complete."""
        if not isinstance(source, int):
            return True
        return statistics_page.read_token(self.view, self._first + copies.places[source] - _HEAD) == self._token

    def bytes_of(self, copies: Copies, source: Source) -> torch.Tensor:
        """A copy, as long as the buffer is not filled again."""
        if not isinstance(source, int):
            return source
        at = self._first + copies.places[source]
        return torch.frombuffer(self._page, dtype=torch.uint8, count=copies.sizes[source], offset=at)


class Copier:
    """Makes dumps of replays."""

    def __init__(self, dumper: dump.Dumper, limit: int, driver: device_stats.Driver) -> None:
        """``limit`` is how many bytes of dumps are kept at all."""
        self.wanted = dumper.wanted
        self.limit = min(limit, MOST_COPIED)
        self._dumper = dumper
        self._driver = driver
        self._spare: list[Buffer] = []

    def lend(self, copies: Copies) -> Buffer | None:
        """A buffer for the copies of a replay, filled with the requests for them; None where there are none.

        Raises:
            MarkersUnavailable: the device cannot write to the host's memory.
        """
        if not copies.calls:
            return None
        copies.rows.check()
        needed = copies.nbytes + len(copies.rows) * REQUEST.size
        buffer = next((spare for spare in self._spare if spare.size >= needed), None)
        if buffer is None:
            buffer = Buffer(self._driver, 1 << (needed - 1).bit_length())
        else:
            self._spare.remove(buffer)
        buffer.fill(copies)
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """A buffer that nothing is written to or read from any more."""
        self._spare.append(buffer)

    def save(self, copies: Copies, buffer: Buffer, call: CopiedCall, replay: int) -> dump.Saved | None:
        """Make a dump of a call as it ran at a replay; None where the device did not get to it.

        Raises:
            Skipped, OSError: it could not be made.
        """

        def side(taken: Taken, sources: Sequence[Source], value: schema.Value) -> dump.Side | None:
            if not all(buffer.has(copies, source) for source in sources):
                return None
            storages = [buffer.bytes_of(copies, source) for source in sources]
            return dump.Side(taken.views, storages, taken.paths, taken.lost, value)

        inputs = side(call.inputs, call.inputs.sources, None)
        if inputs is None:
            return None
        after = side(call.inputs, call.after, None)
        outputs = side(call.outputs, call.outputs.sources, call.result)
        return self._dumper.save(call.record, replay, inputs, after, outputs)
