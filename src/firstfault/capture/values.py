"""How a recorder reads the values of tensors: at once, or without waiting for the device; and what it does on NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from firstfault.capture import (
    by_device,
    coverage,
    deferred_stats,
    device_stats,
    dump,
    graphs,
    guard,
    progress,
    stats,
    tripwire,
)
from firstfault.capture.describe import Found, Walk
from firstfault.capture.graph_copies import CopiedCall, Copier
from firstfault.capture.graph_values import AT_REPLAY, GraphValues, Replay
from firstfault.capture.metadata import Metadata
from firstfault.errors import tell
from firstfault.record import schema
from firstfault.record.statistics_page import INPUTS
from firstfault.settings import Settings

LEFT_ALONE = "CUDA graphs were left alone, so that the values in them are not known"


class Values:
    """Reads statistics as the settings ask for, from level 5 on."""

    def __init__(
        self,
        chosen: Settings,
        folder: Path | None,
        dumper: dump.Dumper | None,
        note: Callable[[str, str], None],
        dumped: Callable[[schema.Dump], None],
        in_c: Metadata | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            chosen: the settings.
            folder: that of the process in the recording, if there is one.
            dumper: what makes dumps, at level 10.
            note: writes a note into the recording.
            dumped: writes of a dump into it.
            in_c: what writes calls in C, and has the device read by itself, be it waited for.
        """
        self._folder = folder
        self._dumper = dumper
        self._most_dumped = chosen.dump_max_bytes
        self._ring = chosen.ring_bytes > 0
        self._note = note
        self._dumped = dumped
        self._page: deferred_stats.DeferredStatistics | None = None
        self._in_graphs = self._wants_graphs = chosen.in_graphs and folder is not None
        self.graphs: GraphValues | None = None
        """What reads inside CUDA graphs, once one is about to be captured."""
        self._deferred: deferred_stats.DeferredStatistics | None = None
        self._in_c = in_c
        self._waits = not chosen.asynchronous
        """Whether the device is waited for where it reads by itself."""
        self._defers = folder is not None and chosen.may_defer_statistics and (in_c is not None or not self._waits)
        if chosen.asynchronous and not self._defers:
            tell("FIRSTFAULT_STATS=async needs a recording at level 5; statistics are read at once")
        self._tripwire = tripwire.Tripwire() if chosen.stop_on_nan else None

    def read(self, found: list[Found], n: int, op: str, side: str) -> None:
        """Read the statistics of one side of a call, or have the device read them later."""
        self._read(found, deferred_stats.Side(n, op, side))
        if self._tripwire is not None:
            if side == INPUTS and any(map(_is_unread, found)):
                self.excuse(n)
            for item in found:
                self._tripwire.see(n, op, side, item.path, item.described.nan_count)

    def _read(self, found: list[Found], side: deferred_stats.Side) -> None:
        graph = graphs.capturing()
        if self.graphs is not None and self.graphs.reads(graph):
            self.graphs.read(graph, found, side)
        elif (deferred := self._deferred or self._open_deferred()) is not None:
            self._start(deferred, deferred.ask(found, side))
        else:
            stats.fill_all(found)

    def _start(self, deferred: deferred_stats.DeferredStatistics, launches: list[deferred_stats.Launch]) -> None:
        deferred.start(launches)
        if self._waits:
            deferred.wait(launches)

    @contextmanager
    def without_waiting(self, found: list[Found], n: int, op: str, side: str) -> Iterator[None]:
        """Read some tensors of a call: what lies on the host at once, what is captured at each replay, the rest when
        the device gets there.

        What runs inside writes the call down before the device is told to read.
        """
        asked = deferred_stats.Side(n, op, side)
        graph = graphs.capturing()
        launches: list[deferred_stats.Launch] = []
        deferred = self._deferred or self._open_deferred()
        if self.graphs is not None and self.graphs.reads(graph):
            self.graphs.read(graph, found, asked)
        elif deferred is not None:
            launches = deferred.ask(found, asked)
        else:
            stats.fill_all([item for item in found if not item.tensor.is_cuda])
        yield
        if deferred is not None:
            deferred.start(launches)

    def excuse(self, n: int) -> None:
        """Take no NaN of a call's results for its own: not all of its inputs are known."""
        if self._tripwire is not None:
            self._tripwire.excuse(n)

    @contextmanager
    def left_to_device(self, found: list[Found], n: int, op: str) -> Iterator[bool]:
        """Leave the arguments of a call to the device, if all can be that are not read in no time; whether that is so.

        What runs inside writes the call down before the device is told to read.
        """
        deferred = self._deferred or self._open_deferred()
        captured = self.graphs is not None and self.graphs.reads(graphs.capturing())
        if deferred is None or captured or not all(map(_needs_no_waiting, found)):
            yield False
            return
        launches = deferred.ask(found, deferred_stats.Side(n, op, INPUTS))
        if any(map(_is_unread, found)):
            self.excuse(n)
        try:
            yield True
        finally:
            self._start(deferred, launches)

    def prepare_capture(self) -> bool:
        """See to it that the graph that is about to be captured can be read; whether it can."""
        if not self._in_graphs or guard.graph_capture_active():
            return False
        try:
            if self.graphs is None:
                self.graphs = self._open_graphs()
            self.graphs.prepare()
        except (device_stats.Unavailable, progress.MarkersUnavailable, OSError) as reason:
            self._in_graphs = False
            self.graphs = None
            self._note("graphs", f"the values in CUDA graphs are not read: {reason}")
        return self.graphs is not None

    def captures(self, graph: int) -> None:
        """The capture of a graph that can be read has begun."""
        if self.graphs is not None:
            self.graphs.begun(graph)

    def captured(self, number: int, graph: torch.cuda.CUDAGraph) -> None:
        """The capture of a graph has come to its end."""
        if self.graphs is None:
            return
        try:
            self.graphs.ended(number, _pool_of(graph))
        except RuntimeError as reason:  # of an allocator that knows of no pools
            self._note("graphs", f"the values in a CUDA graph are not read: {reason}")

    def forget(self, graph: int) -> None:
        """A graph is no more."""
        if self.graphs is not None:
            self.graphs.gone(graph)

    def leave_alone(self) -> None:
        """Count a graph whose values are not read, where they were asked for."""
        if self._wants_graphs:
            self._missed("left alone", LEFT_ALONE)

    def copy(self, record: schema.Call, walk: Walk) -> CopiedCall | None:
        """Have the arguments of a captured call copied at each replay; None where it is captured into no such graph.

        Raises:
            Skipped: they cannot be.
        """
        graph = graphs.capturing()
        if self.graphs is None or not self.graphs.reads(graph):
            return None
        return self.graphs.copy(graph, record, walk.found, walk.cut)

    def replay(self, graph: int, record: schema.Call) -> Replay | None:
        """What a replay of a graph needs for it to be read, noted in its record; None where it is not read."""
        if self.graphs is None or record.device < 0:
            return None
        return self.graphs.replay(graph, record)

    def stop_on_nan(self) -> None:
        """Raise what the tripwire has found.

        Raises:
            NanFound: a call gave NaN for inputs without.
        """
        if self._tripwire is None:
            return
        try:
            if self._page is not None:
                self._page.look()
        except Exception as error:
            guard.internal_error("looking for NaN", error)
        if (found := self._tripwire.found()) is not None:
            raise found

    def close(self) -> None:
        """Take in what the device has read, and tell of NaN that no boundary came after."""
        if self._in_c is not None:
            self._in_c.stop_reading()
        if self._page is not None:
            self._page.close()
            self._page = self._deferred = self.graphs = None
        if self._tripwire is not None and (found := self._tripwire.found()) is not None:
            tell(f"{found}, after the last boundary")

    def _open_deferred(self) -> deferred_stats.DeferredStatistics | None:
        """The statistics page, once the program uses CUDA; one note where it cannot be had."""
        if not self._defers or not torch.cuda.is_initialized() or guard.graph_capture_active():
            return None
        self._defers = False
        try:
            self._deferred = self._open_page(self._reader())
            if self._in_c is not None:
                self._in_c.read_by(self._deferred, waits=self._waits)
        except (device_stats.Unavailable, progress.MarkersUnavailable, OSError) as reason:
            self._note("statistics", f"statistics are read at once: {reason}")
        return self._deferred

    def _open_graphs(self) -> GraphValues:
        """What reads inside CUDA graphs.

        Raises:
            Unavailable, MarkersUnavailable, OSError: the device cannot do it.
        """
        reader = self._reader()
        copier = Copier(self._dumper, self._most_dumped, reader.driver) if self._dumper is not None else None
        waits = (self._deferred or self._open_deferred()) is None or self._waits
        return GraphValues(self._open_page(reader), reader, copier, self._dumped, self._missed, waits=waits)

    def _open_page(self, reader: device_stats.Reader) -> deferred_stats.DeferredStatistics:
        if self._page is None:
            assert self._folder is not None
            self._page = deferred_stats.DeferredStatistics(self._folder, reader, self._tripwire, ring=self._ring)
        return self._page

    def _missed(self, code: str, sentence: str) -> None:
        """Count that something was not seen, and write it down the first time."""
        if coverage.missed(code, sentence):
            self._note(code, sentence)

    def _reader(self) -> device_stats.Reader:
        reader = device_stats.reader()
        if reader is None:
            raise device_stats.Unavailable("the device cannot read them by itself")
        return reader


def _needs_no_waiting(item: Found) -> bool:
    """Whether a tensor is read by the device, or else at once."""
    return deferred_stats.lies_there(item.tensor) or by_device.is_quick(item)


def _is_unread(item: Found) -> bool:
    """Whether nothing is known of a tensor's values, and nothing will be."""
    return item.described.statistics not in (None, stats.EMPTY, deferred_stats.PENDING, AT_REPLAY)


def _pool_of(graph: torch.cuda.CUDAGraph) -> list[tuple[int, int]]:
    """The memory that the pool of a graph has by now, from begin to end of each piece."""
    pool = tuple(graph.pool())
    return [
        (segment["address"], segment["address"] + segment["total_size"])
        for segment in torch.cuda.memory.memory_snapshot()
        if tuple(segment["segment_pool_id"]) == pool
    ]
