"""Where the device was: markers and the order they were enqueued in → the call that it did not complete.

    device 0 stream 0x0: completed up to the end of call 36, host had got to call 100
    → moe_align (call 37) began and did not complete

Three things that look like one are told apart: where an error surfaced, how far the host had got, and the
culprit, the first call in stream order whose device work began and did not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from firstfault.read.marks import MOST_AHEAD, Order
from firstfault.record import progress


class Reach(str, Enum):
    """How far a stream's device had got."""

    CAUGHT_UP = "completed everything"
    IN_CALL = "in a call"
    UNRECORDED = "in unrecorded work"
    CANNOT_TELL = "could not tell"


_LIKELIEST = [Reach.IN_CALL, Reach.UNRECORDED, Reach.CANNOT_TELL, Reach.CAUGHT_UP]


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
    """Where every stream stood, the likeliest culprit first.

    A call that began and did not complete comes before streams that stand between calls: once a context is dead
    those no longer move either, whatever they were doing.
    """
    found = [_position(slot, order) for slot in page.slots if slot.kind == progress.STREAM and slot.enqueued]
    return sorted(found, key=lambda position: (_LIKELIEST.index(position.reach), position.call))


def _position(slot: progress.Slot, order: Order) -> Position:
    host = slot.enqueued >> 1
    if slot.caught_up:
        return Position(slot.device, slot.handle, Reach.CAUGHT_UP, host, host)
    markers = list(order.streams.get((slot.device, slot.handle), ()))
    if not slot.reached and _is_first(markers):
        return Position(slot.device, slot.handle, Reach.UNRECORDED, 0, host)  # not even the first was reached
    call, side = progress.call_of(slot.reached, slot.enqueued)
    reached = progress.end_marker(call) if side == "end" else progress.begin_marker(call)
    if reached not in markers:
        return Position(slot.device, slot.handle, Reach.CANNOT_TELL, call, host)
    return _after(slot, markers, markers.index(reached), order.ended, host)


def _is_first(markers: list[int]) -> bool:
    """Whether the first marker that a stream ever had is among them: no older ones were forgotten."""
    return 0 < len(markers) < MOST_AHEAD


def _after(slot: progress.Slot, markers: list[int], index: int, elsewhere: Collection[int], host: int) -> Position:
    """What lies between the marker that was reached and the next, which was not."""
    reached = markers[index]
    call, ended = reached >> 1, bool(reached & 1)
    if not ended and call not in elsewhere:
        return Position(slot.device, slot.handle, Reach.IN_CALL, call, host)
    enclosing = _enclosing(markers, index, elsewhere)
    if enclosing:
        return Position(slot.device, slot.handle, Reach.IN_CALL, enclosing, host)
    return Position(slot.device, slot.handle, Reach.UNRECORDED, call, host)


def _enclosing(markers: list[int], index: int, elsewhere: Collection[int]) -> int:
    """The innermost call that had begun on the stream and not ended where ``index`` stands; 0 for none.

    Calls that ended ``elsewhere``, on another stream, never end on this one.
    """
    ended = set(elsewhere)
    for marker in reversed(markers[: index + 1]):
        if marker & 1:
            ended.add(marker >> 1)
        elif marker >> 1 not in ended:
            return marker >> 1
    return 0


def sentence(position: Position, op_of: Callable[[int], str]) -> str:
    """Where a stream stands, in words; ``op_of`` names the operator of a call."""
    call = f"{op_of(position.call)} (call {position.call})"
    after = f"after {call}" if position.call else "before the first call"
    device = {
        Reach.CAUGHT_UP: f"the device completed everything, up to {call}",
        Reach.IN_CALL: f"the device began {call} and did not complete it",
        Reach.UNRECORDED: f"the device is in unrecorded work {after}",
        Reach.CANNOT_TELL: f"the device is at call {position.call}, which the record does not have",
    }[position.reach]
    where = f"device {position.device} stream {position.stream:#x}"
    return f"{where}: {device}; the host got to {op_of(position.host)} (call {position.host})"
