"""Where the device was: markers and the order they were enqueued in → the call that it did not complete.

    device 0 stream 0x0: completed up to the end of call 36, host had got to call 100
    → moe_align (call 37) began and did not complete

Three things that look like one are told apart: where an error surfaced, how far the host had got, and the
culprit, the first call in stream order whose device work began and did not complete.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from firstfault.record import progress, schema

MOST_AHEAD = 65536
"""Markers remembered of a stream; a launch queue holds about a thousand."""


class Reach(str, Enum):
    """How far a stream's device had got."""

    CAUGHT_UP = "completed everything"
    IN_CALL = "in a call"
    UNRECORDED = "in unrecorded work"
    CANNOT_TELL = "could not tell"


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


@dataclass(frozen=True)
class Position:
    """Where one stream stood.

    Attributes:
        device, stream: which.
        reach: what the device was doing.
        call: the culprit where it was in a call; where it was in unrecorded work the last call before that;
            0 for none.
        host: the last call whose marker the host enqueued.
    """

    device: int
    stream: int
    reach: Reach
    call: int
    host: int


def positions(page: progress.Page, order: Order) -> list[Position]:
    """Where every stream stood, those that had not caught up first, in the order of their culprits."""
    found = [_position(slot, order) for slot in page.slots if slot.kind == progress.STREAM and slot.enqueued]
    return sorted(found, key=lambda position: (position.reach is Reach.CAUGHT_UP, position.call))


def _position(slot: progress.Slot, order: Order) -> Position:
    host = slot.enqueued >> 1
    if slot.caught_up:
        return Position(slot.device, slot.handle, Reach.CAUGHT_UP, host, host)
    markers = list(order.streams.get((slot.device, slot.handle), ()))
    if not slot.reached and markers[:1] == [progress.begin_marker(1)]:
        return Position(slot.device, slot.handle, Reach.UNRECORDED, 0, host)  # not even the first was reached
    call, side = progress.call_of(slot.reached, slot.enqueued)
    reached = progress.end_marker(call) if side == "end" else progress.begin_marker(call)
    if reached not in markers:
        return Position(slot.device, slot.handle, Reach.CANNOT_TELL, call, host)
    return _after(slot, markers, markers.index(reached), host)


def _after(slot: progress.Slot, markers: list[int], index: int, host: int) -> Position:
    """What lies between the marker that was reached and the next, which was not."""
    reached = markers[index]
    call, ended = reached >> 1, bool(reached & 1)
    if not ended:
        return Position(slot.device, slot.handle, Reach.IN_CALL, call, host)
    enclosing = _enclosing(markers, index)
    if enclosing:
        return Position(slot.device, slot.handle, Reach.IN_CALL, enclosing, host)
    return Position(slot.device, slot.handle, Reach.UNRECORDED, call, host)


def _enclosing(markers: list[int], index: int) -> int:
    """The innermost call that had begun on the stream and not ended where ``index`` stands; 0 for none."""
    ended: set[int] = set()
    for marker in reversed(markers[: index + 1]):
        if marker & 1:
            ended.add(marker >> 1)
        elif marker >> 1 not in ended:
            return marker >> 1
    return 0
