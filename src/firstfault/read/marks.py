"""The order in which a process enqueued its progress markers, per device and stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from firstfault.record import progress, schema

MOST_AHEAD = 16384
"""Markers remembered of a stream; the host runs ahead by a launch queue, which holds about a thousand."""


@dataclass
class Order:
    """The markers of a process, per device and stream, in the order that the host enqueued them."""

    streams: dict[tuple[int, int], deque[int]] = field(default_factory=dict)

    def take(self, record: schema.Record) -> None:
        """Note the marker of a record, if it had one."""
        if isinstance(record, schema.Call) and record.device >= 0:
            self._add(record.device, record.stream, progress.begin_marker(record.n))
        elif isinstance(record, schema.Return) and record.device >= 0:
            self._add(record.device, record.stream, progress.end_marker(record.n))

    def _add(self, device: int, stream: int, marker: int) -> None:
        self.streams.setdefault((device, stream), deque(maxlen=MOST_AHEAD)).append(marker)
