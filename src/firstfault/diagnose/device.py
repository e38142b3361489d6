"""Where the device was: markers and the order they were enqueued in → the call that it did not complete.

    device 0 stream 0x0: completed up to the end of call 36, host had got to call 100
    → moe_align (call 37) began and did not complete

Three things that look like one are told apart: where an error surfaced, how far the host had got, and the
culprit, the first call in stream order whose device work began and did not complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
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
        inside: where in a CUDA graph it was, if the call replays one that carries markers.
    """

    device: int
    stream: int
    reach: Reach
    call: int
    host: int
    inside: Inside | None = None


@dataclass(frozen=True)
class Inside:
    """Where in the replay of a CUDA graph a device was.

    Attributes:
        graph: the graph's number.
        replays: how often it had been replayed, this time included; the host may have enqueued more.
        reach: ``IN_CALL`` of a captured call, ``UNRECORDED`` for what was captured between such, or
            ``CANNOT_TELL`` where the record no longer has the call.
        call: the captured call; where it was between calls the one before that, 0 for none.
    """

    graph: int
    replays: int
    reach: Reach
    call: int


def positions(page: progress.Page, order: Order) -> list[Position]:
    """Where every stream stood, the likeliest culprit first.

    A call that began and did not complete comes before streams that stand between calls: once a context is dead
    those no longer move either, whatever they were doing.
    """
    graphs = {slot.handle: slot for slot in page.slots if slot.kind == progress.GRAPH}
    found = [
        _with_graph(_position(slot, order), graphs, order)
        for slot in page.slots
        if slot.kind == progress.STREAM and slot.enqueued
    ]
    return sorted(found, key=lambda position: (_LIKELIEST.index(position.reach), position.call))


def _with_graph(position: Position, graphs: dict[int, progress.Slot], order: Order) -> Position:
    """Look into the graph whose replay the device was in, if it was in one."""
    graph = order.replays.get(position.call, 0) if position.reach is Reach.IN_CALL else 0
    slot = graphs.get(graph)
    if slot is None:
        return position
    markers = list(order.graphs.get(graph, ()))
    if not slot.reached:
        reach, call = Reach.UNRECORDED, 0
    elif (found := _last_like(markers, slot.reached)) is not None:
        reach, call = _between(markers, found, order.ended)
    else:  # it was captured before what the record still has
        reach, call = Reach.CANNOT_TELL, slot.reached >> 1
    ahead = sum(n > position.call and other == graph for n, other in order.replays.items())
    return replace(position, inside=Inside(graph, slot.enqueued - ahead, reach, call))


def _last_like(markers: list[int], word: int) -> int | None:
    """Where the marker stands that a device's 32-bit word is of."""
    return next((at for at in range(len(markers) - 1, -1, -1) if markers[at] & 0xFFFFFFFF == word), None)


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
    reach, call = _between(markers, markers.index(reached), order.ended)
    return Position(slot.device, slot.handle, reach, call, host)


def _is_first(markers: list[int]) -> bool:
    """Whether the first marker that a stream ever had is among them: no older ones were forgotten."""
    return 0 < len(markers) < MOST_AHEAD


def _between(markers: list[int], index: int, elsewhere: Collection[int]) -> tuple[Reach, int]:
    """What lies between the marker that was reached and the next, which was not: a call, or what follows one."""
    reached = markers[index]
    call, ended = reached >> 1, bool(reached & 1)
    if not ended and call not in elsewhere:
        return Reach.IN_CALL, call
    enclosing = _enclosing(markers, index, elsewhere)
    return (Reach.IN_CALL, enclosing) if enclosing else (Reach.UNRECORDED, call)


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
    if position.inside is not None:
        device += f", {inside_sentence(position.inside, op_of)}"
    return f"{where}: {device}; the host got to {op_of(position.host)} (call {position.host})"


def inside_sentence(inside: Inside, op_of: Callable[[int], str]) -> str:
    """Where in a CUDA graph the device stands, in words."""
    graph = f"graph {inside.graph}, replayed {inside.replays} times"
    call = f"{op_of(inside.call)} (call {inside.call})"
    if inside.reach is Reach.CANNOT_TELL:
        return f"{graph}, where it got to call {inside.call}, which the record no longer has"
    if inside.reach is Reach.IN_CALL:
        return f"{graph}, where it began {call} and did not complete it"
    return f"{graph}, where it is in unrecorded work {f'after {call}' if inside.call else 'before the first call'}"
