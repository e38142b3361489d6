"""The order in which a process enqueued its progress markers, per stream, or captured them, per CUDA graph."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from firstfault.record import progress, schema

Value = TypeVar("Value")
MOST_AHEAD = 16384
"""Markers remembered of a stream; the host runs ahead by a launch queue, which holds about a thousand."""


@dataclass
class Order:
    """The markers of a process, in the order that the host enqueued or captured them."""

    streams: dict[tuple[int, int], deque[int]] = field(default_factory=dict)
    """By device and stream."""
    graphs: dict[int, deque[int]] = field(default_factory=dict)
    """By the CUDA graph that they were captured into."""
    replays: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """The graph that a call replayed, by the call's number."""
    ended: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_AHEAD))
    """Calls that ended on another stream than they began on, or on none: their own never says that they did."""

    _began: OrderedDict[int, _Place] = field(default_factory=OrderedDict)

    def take(self, record: schema.Call | schema.Return | schema.Raise) -> None:
        """Note the marker of a record, if it had one."""
        if isinstance(record, schema.Call):
            self._begin(record)
        else:
            self._end(record)

    def _begin(self, call: schema.Call) -> None:
        if call.device < 0 and not call.graph:
            return
        place = _Place(call.device, call.stream, call.graph if call.device < 0 else 0)
        _keep(self._began, call.n, place)
        self._add(place, progress.begin_marker(call.n))
        if call.graph and call.device >= 0:
            _keep(self.replays, call.n, call.graph)

    def _end(self, record: schema.Return | schema.Raise) -> None:
        began = self._began.pop(record.n, None)
        if began is None and record.device < 0:
            return
        place = _Place(record.device, record.stream, 0)
        if began is not None and began.graph and record.device < 0:
            place = began
        elif began is not None and began != place:
            self.ended.append(record.n)
        self._add(place, progress.end_marker(record.n))

    def _add(self, place: _Place, marker: int) -> None:
        if place.graph:
            self.graphs.setdefault(place.graph, deque(maxlen=MOST_AHEAD)).append(marker)
        elif place.device >= 0:
            self.streams.setdefault((place.device, place.stream), deque(maxlen=MOST_AHEAD)).append(marker)


class _Place(NamedTuple):
    """Where a marker was enqueued, or captured into."""

    device: int
    stream: int
    graph: int


def _keep(kept: OrderedDict[int, Value], n: int, value: Value) -> None:
    kept[n] = value
    if len(kept) > MOST_AHEAD:
        kept.popitem(last=False)
