"""Values inside CUDA graphs: what captured calls are given and give, read by the device at each replay.

    capture   scale (call 38) of graph 1    statistics=[read at each replay of its CUDA graph], reading 3
    replay    call 104, replay 17, token 412: reading 3 is what the statistics page has under token 414

For each side of a captured call a launch of the kernel that reads statistics is captured. What it reads, and where
the results go, lies in memory of ours that the stream is given just before a replay that is recorded, and that is
cleared just behind it. Nothing is allocated from a graph's pool, and no tensor of the program's is held: what it has
freed by the time of a replay is left out of that. At level 10 the same kernel copies the tensors too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from firstfault.capture import device_stats, stats
from firstfault.capture.deferred_stats import DeferredStatistics, Entries, Reading, Side
from firstfault.capture.describe import Found
from firstfault.capture.device_stats import Reader, Request
from firstfault.capture.graph_copies import Buffer, CopiedCall, Copier, Copies, is_lazy
from firstfault.capture.graph_rows import Launch, Rows
from firstfault.capture.open_call import why_not_dumped
from firstfault.capture.progress import NOWHERE, MarkersUnavailable
from firstfault.record import schema, statistics_page

AT_REPLAY = "[read at each replay of its CUDA graph]"
NOT_IN_GRAPH = "[skipped: it cannot be read inside a CUDA graph]"
TOO_MANY = "[skipped: its CUDA graph has too many tensors]"
FREED = "the program has freed some of its tensors"
FAR_BEHIND = "replays of CUDA graphs whose values were not read: the device was too far behind"
MOST_READINGS = statistics_page.ENTRIES // 2
"""Tensors of a graph: at a replay their entries lie next to each other, in half of the statistics page."""


class Captured:
    """What is read and copied at the replays of one graph."""

    def __init__(self, reader: Reader, most_copied: int) -> None:
        self.rows = Rows(reader.driver)
        self.copies = Copies(reader, most_copied)
        self.readings: list[Reading] = []
        self.described: list[schema.Tensor] = []
        self.replays = itertools.count(1)
        self.ready = False
        """Whether its capture has come to its end."""
        self._reader = reader
        self._entries = bytearray()
        self._launches: dict[tuple[int, int], Launch] = {}
        self._event = 0

    @property
    def entries(self) -> memoryview:
        """What the host writes into the statistics page at a replay, in words, but for the tokens."""
        return memoryview(self._entries).cast("q")

    def launch(self, place: tuple[int, int]) -> Launch:
        """What captures launches on a stream."""
        found = self._launches.get(place)
        if found is None:
            found = self._launches[place] = Launch(self._reader, place)
        return found

    def read(self, found: Sequence[Found], side: Side, place: tuple[int, int]) -> None:
        """Capture the reading of tensors of a device, and say of each that it is read, or why not."""
        wanted: list[tuple[Found, Request]] = []
        asked = self._reader.requests([item.tensor for item in found], place[0])
        for item, request in zip(found, asked, strict=True):
            item.described.statistics = NOT_IN_GRAPH
            if len(self.readings) + len(wanted) >= MOST_READINGS:
                item.described.statistics = TOO_MANY
            elif request is not None and self._reader.loaded(place[0], [request]) is not None:
                wanted.append((item, request))
        taken = self.rows.add(
            [(request, item.tensor.untyped_storage()) for item, request in wanted], self.launch(place)
        )
        for item, (_, plan) in wanted[:taken]:
            entry = statistics_page.entry(0, side.call, side.side, len(self.readings), plan.values)
            self._entries += entry.ljust(statistics_page.ENTRY_BYTES, b"\0")
            self.readings.append(Reading(side, item.path, plan.values))
            self.described.append(item.described)
            item.described.statistics, item.described.reading = AT_REPLAY, len(self.readings)

    def ask(self, entries: Entries | None, buffer: Buffer | None, stream: int) -> None:
        """Give a stream what its next replay is asked for, behind the last replay, be that another stream's."""
        driver = self._reader.driver
        if self._event:
            driver.follow(stream, self._event)
        else:
            self._event = driver.event()
        if entries is not None:
            self.rows.ask(entries.requests, stream)
        if buffer is not None:
            self.copies.rows.ask(buffer.requests, stream)

    def clear(self, stream: int) -> None:
        """Take that away behind the replay."""
        self.rows.clear(stream)
        self.copies.rows.clear(stream)
        self._reader.driver.record(self._event, stream)

    def close(self) -> None:
        """Give its memory back; it waits until no replay uses it any more."""
        scratch = [launch.scratch for launch in self._launches.values() if launch.scratch]
        for address in (*self.rows.blocks, *self.copies.rows.blocks, *scratch):
            self._reader.driver.free(address)
        if self._event:
            self._reader.driver.discard(self._event)


class Replay(NamedTuple):
    """A replay that is recorded.

    Attributes:
        values: whose it is.
        captured: what is read at it.
        number: how often its graph has been replayed, from 1.
        place: device and stream.
        entries: of its readings; None where there are none.
        buffer: of its copies; None where there are none.
    """

    values: GraphValues
    captured: Captured
    number: int
    place: tuple[int, int]
    entries: Entries | None
    buffer: Buffer | None

    def start(self) -> None:
        """Give the stream what the replay is asked for."""
        self.captured.ask(self.entries, self.buffer, self.place[1])

    def done(self) -> None:
        """The stream has been given the replay."""
        self.captured.clear(self.place[1])

    def take_in(self) -> None:
        """Wait for it, where the device is waited for, and make dumps of the calls in it."""
        self.values.take_in(self)


class GraphValues:
    """The graphs of this process whose values are read."""

    def __init__(
        self,
        page: DeferredStatistics,
        reader: Reader,
        copier: Copier | None,
        dumped: Callable[[schema.Dump], None],
        missed: Callable[[str, str], None],
        *,
        waits: bool,
    ) -> None:
        """Read no graph yet.

        Args:
            page: where the statistics go.
            reader: what reads them.
            copier: what makes dumps of replays, at level 10.
            dumped: told of each of those, or why there is none.
            missed: told each time that something is not seen, by a code and in words.
            waits: whether the device is waited for after each replay, as it is for a dump.
        """
        self._page = page
        self._reader = reader
        self._copier = copier
        self._dumped = dumped
        self._missed = missed
        self._waits = waits or copier is not None
        self._graphs: dict[int, Captured] = {}
        self._gone: list[Captured] = []

    def prepare(self) -> None:
        """Load the kernel before a capture begins, and give back what graphs had that are no more.

        Raises:
            Unavailable, MarkersUnavailable: the device cannot read by itself.
        """
        while self._gone:
            self._gone.pop().close()
        copying = [device_stats.copy_request(0, 1, 1)] if self._copier is not None else []
        self._reader.kernel(self._reader.driver.current()[0], copying)

    def begun(self, graph: int) -> None:
        """The capture of a graph begins."""
        self._graphs[graph] = Captured(self._reader, self._copier.limit if self._copier is not None else 0)

    def ended(self, graph: int, pool: Sequence[tuple[int, int]]) -> None:
        """The capture of a graph has come to its end; the memory of its pool lies from begin to end of each piece."""
        if (captured := self._graphs.get(graph)) is not None:
            captured.rows.sources.keep_outside(pool)
            captured.copies.rows.sources.keep_outside(pool)
            captured.ready = True

    def gone(self, graph: int) -> None:
        """A graph is no more. What it had is freed when the next capture begins, where torch waits as well."""
        if (captured := self._graphs.pop(graph, None)) is not None:
            self._gone.append(captured)

    def reads(self, graph: int) -> bool:
        """Whether the current stream is captured into a graph whose values are read."""
        return graph in self._graphs and self._reader.driver.captured() != NOWHERE

    def read(self, graph: int, found: list[Found], side: Side) -> None:
        """Capture the reading of one side of a call; tensors on the host are read now."""
        place = self._reader.driver.captured()
        wanted = []
        for item in stats.within_reach(found, at_replays=True):
            if not _is_on_device(item.tensor):
                stats.fill(item.described, stats.read(item.tensor, contiguous=item.described.contiguous))
            elif is_lazy(item.tensor):
                item.described.statistics = NOT_IN_GRAPH
            else:
                item.described.statistics = stats.nothing_to_read(item.tensor, contiguous=item.described.contiguous)
                wanted += [item] if item.described.statistics is None else []
        self._graphs[graph].read(wanted, side, place)

    def copy(self, graph: int, record: schema.Call, found: list[Found], not_captured: int) -> CopiedCall:
        """Capture the copies of a call's arguments.

        Raises:
            Skipped: they are too large, or the device cannot.
        """
        captured = self._graphs[graph]
        call = CopiedCall(captured.copies, record, captured.launch(self._reader.driver.captured()))
        call.begin(found, not_captured)
        return call

    def replay(self, graph: int, record: schema.Call) -> Replay | None:
        """Take what the next replay of a graph needs, and note it in the record; None where it is not read."""
        captured = self._graphs.get(graph)
        if captured is None or not captured.ready or not (captured.readings or captured.copies.calls):
            return None
        buffer = self._lend(captured)
        record.replay, place, entries = next(captured.replays), (record.device, record.stream), None
        if captured.readings:
            entries = self._enter(captured, place, record.replay)
            record.token = entries.token if entries is not None else 0
        return Replay(self, captured, record.replay, place, entries, buffer)

    def take_in(self, replay: Replay) -> None:
        """Wait for a replay, where the device is waited for, and make dumps of the calls in it."""
        if not self._waits:
            return
        alive = self._reader.driver.wait(replay.place[1])
        if replay.buffer is None or self._copier is None:
            return
        try:
            self._describe(replay)
            for call in replay.captured.copies.calls:
                self._save(replay, call, replay.buffer, alive=alive)
        finally:
            self._copier.give_back(replay.buffer)

    def _lend(self, captured: Captured) -> Buffer | None:
        """Memory for what is copied at a replay; none where nothing is, or, with a note, where there is none."""
        try:
            return self._copier.lend(captured.copies) if self._copier is not None else None
        except MarkersUnavailable as reason:
            self._missed("copies", f"replays of CUDA graphs were not dumped: {reason}")
            return None

    def _enter(self, captured: Captured, place: tuple[int, int], number: int) -> Entries | None:
        """Entries for what is read at a replay; none, with a note, where the device is too far behind."""
        unread = captured.rows.check()
        readings = (each._replace(side=each.side._replace(replay=number)) for each in captured.readings)
        entries = self._page.enter(place, captured.entries, captured.rows.words, unread, readings)
        if entries is None:
            self._missed("replays", FAR_BEHIND)
        return entries

    def _describe(self, replay: Replay) -> None:
        """Write what was read at a replay into the descriptions that its dumps have, once more for each replay."""
        if replay.entries is None:
            return
        slots = itertools.count(replay.entries.first)
        tokens = itertools.count(replay.entries.token)
        for described, reading, slot, token in zip(
            replay.captured.described, replay.captured.readings, slots, tokens, strict=False
        ):
            found = self._page.result(slot, token, reading.values)
            described.statistics = None if found is not None else AT_REPLAY
            stats.fill(described, found if found is not None else AT_REPLAY)

    def _save(self, replay: Replay, call: CopiedCall, buffer: Buffer, *, alive: bool) -> None:
        """Make a dump of a captured call; of a device that died there is none where it had not begun the call."""
        assert self._copier is not None
        number, n, skipped = replay.number, call.record.n, FREED if alive else None
        try:
            saved = self._copier.save(replay.captured.copies, buffer, call, number)
            skipped = None if saved is not None else skipped
        except Exception as error:
            saved, skipped = None, why_not_dumped(error)
        if saved is not None:
            self._dumped(schema.Dump(n, "inputs", saved.folder, saved.inputs, replay=number))
            if saved.outputs:
                self._dumped(schema.Dump(n, "outputs", saved.folder, saved.outputs, replay=number))
        elif skipped is not None:
            self._dumped(schema.Dump(n, "inputs", skipped=skipped, replay=number))


def _is_on_device(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_cuda)
