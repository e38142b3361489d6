"""The order in which a process enqueued its progress markers, per device and stream."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from firstfault.record import progress, schema

MOST_AHEAD = 16384
"""Markers remembered of a stream; the host runs ahead by a launch queue, which holds about a thousand."""


@dataclass
class Order:
    """The markers of a process, per device and stream, in the order that the host enqueued them."""

    streams: dict[tuple[int, int], deque[int]] = field(default_factory=dict)
    ended: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_AHEAD))
    """Calls that ended on another stream than they began on, or on none: their own never says that they did."""

    _began: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)

    def take(self, record: schema.Call | schema.Return | schema.Raise) -> None:
        """Note the marker of a record, if it had one."""
        place = (record.device, record.stream)
        if isinstance(record, schema.Call):
            self._add(place, progress.begin_marker(record.n))
            if record.device >= 0:
                self._began[record.n] = place
                if len(self._began) > MOST_AHEAD:
                    self._began.popitem(last=False)
        else:
            if self._began.pop(record.n, place) != place:
                self.ended.append(record.n)
            self._add(place, progress.end_marker(record.n))

    def _add(self, place: tuple[int, int], marker: int) -> None:
        if place[0] >= 0:
            self.streams.setdefault(place, deque(maxlen=MOST_AHEAD)).append(marker)
