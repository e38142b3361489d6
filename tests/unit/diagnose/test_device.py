from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose.device import Inside, Reach, positions
from firstfault.read.marks import Order
from firstfault.record import progress, schema

Marked = schema.Call | schema.Return | schema.Raise


def begin(n: int, stream: int = 0) -> schema.Call:
    return schema.Call(n, 0, "op", device=0, stream=stream)


def end(n: int, stream: int = 0) -> schema.Return:
    return schema.Return(n, 0, device=0, stream=stream)


def order_of(*records: Marked) -> Order:
    order = Order()
    for record in records:
        order.take(record)
    return order


def page(*slots: tuple[int, int, int]) -> progress.Page:
    """Stream, last marker enqueued, marker reached."""
    return progress.Page(1, 0, "", [progress.Slot(0, progress.STREAM, *slot) for slot in slots])


FLAT: list[Marked] = [record for n in range(1, 101) for record in (begin(n), end(n))]


@pytest.mark.parametrize(
    ("reached", "reach", "call"),
    [
        (progress.begin_marker(37), Reach.IN_CALL, 37),
        (progress.end_marker(36), Reach.UNRECORDED, 36),
        (progress.end_marker(100), Reach.CAUGHT_UP, 100),
        (0, Reach.UNRECORDED, 0),
    ],
)
def test_one_stream(reached: int, reach: Reach, call: int) -> None:
    (position,) = positions(page((0, progress.end_marker(100), reached)), order_of(*FLAT))
    assert (position.reach, position.call, position.host) == (reach, call, 100)


NESTED: list[Marked] = [begin(1), begin(2), end(2), begin(3), end(3), end(1), begin(4)]


@pytest.mark.parametrize(
    ("reached", "reach", "call"),
    [
        (progress.begin_marker(1), Reach.IN_CALL, 1),
        (progress.begin_marker(2), Reach.IN_CALL, 2),
        (progress.end_marker(2), Reach.IN_CALL, 1),
        (progress.end_marker(3), Reach.IN_CALL, 1),
        (progress.end_marker(1), Reach.UNRECORDED, 1),
    ],
)
def test_nested_calls_share_the_slot(reached: int, reach: Reach, call: int) -> None:
    (position,) = positions(page((0, progress.begin_marker(4), reached)), order_of(*NESTED))
    assert (position.reach, position.call) == (reach, call)


def test_streams_that_did_not_catch_up_come_first_in_order() -> None:
    order = order_of(begin(1, 7), end(1, 7), begin(2, 8), begin(3, 9), end(3, 9), end(2, 8))
    found = positions(page((7, 3, 3), (9, 7, 6), (8, 5, 4)), order)
    assert [(position.stream, position.reach) for position in found] == [
        (8, Reach.IN_CALL),
        (9, Reach.IN_CALL),
        (7, Reach.CAUGHT_UP),
    ]


def test_a_marker_that_the_record_does_not_have_is_not_guessed_at() -> None:
    (position,) = positions(page((0, progress.end_marker(100), progress.end_marker(50))), order_of(*FLAT[150:]))
    assert position.reach is Reach.CANNOT_TELL


@given(first=st.integers(2**31 - 300, 2**31 - 1), reached=st.integers(0, 199))
def test_the_word_may_wrap_around(first: int, reached: int) -> None:
    calls = range(first, first + 100)
    records: list[Marked] = [record for n in calls for record in (begin(n), end(n))]
    marker = [progress.begin_marker(n) + side for n in calls for side in (0, 1)][reached]
    (position,) = positions(page((0, progress.end_marker(calls[-1]), marker % 2**32)), order_of(*records))
    if reached == 199:
        assert position.reach is Reach.CAUGHT_UP
    else:
        assert position.call == calls[reached // 2]
        assert position.reach is (Reach.UNRECORDED if reached % 2 else Reach.IN_CALL)


def test_an_idle_side_stream_does_not_come_before_the_call_that_faulted() -> None:
    """Once the context is dead no stream moves: the side stream's next begin is not reached either."""
    order = order_of(begin(1, 8), end(1, 8), begin(2, 7), end(2, 7), begin(3, 8), end(3, 8))
    found = positions(page((8, progress.end_marker(3), progress.end_marker(1)), (7, 5, 4)), order)
    assert [(position.stream, position.reach, position.call) for position in found] == [
        (7, Reach.IN_CALL, 2),
        (8, Reach.UNRECORDED, 1),
    ]


def test_a_stream_that_never_reached_its_first_marker_is_in_unrecorded_work() -> None:
    order = order_of(begin(1, 7), end(1, 7), begin(2, 8), end(2, 8))
    (position, _) = positions(page((8, progress.end_marker(2), 0), (7, 3, 3)), order)
    assert (position.stream, position.reach, position.call) == (8, Reach.UNRECORDED, 0)


def test_a_call_that_raised_has_ended_on_the_device() -> None:
    raised = schema.Raise(1, 0, "ImportError", "no flash", device=0, stream=0)
    order = order_of(begin(1), raised, begin(2), end(2), begin(3))
    (position,) = positions(page((0, progress.begin_marker(3), progress.end_marker(2))), order)
    assert (position.reach, position.call) == (Reach.UNRECORDED, 2)


def test_a_call_that_ended_on_another_stream_is_not_open_on_its_own() -> None:
    order = order_of(begin(1, 7), end(1, 8), begin(2, 7), end(2, 7), begin(3, 7))
    (position, _) = positions(page((7, progress.begin_marker(3), progress.end_marker(2)), (8, 3, 3)), order)
    assert (position.reach, position.call) == (Reach.UNRECORDED, 2)


# --- CUDA graphs


def captured(n: int, graph: int = 1) -> schema.Call:
    return schema.Call(n, 0, "op", graph=graph)


def replay(n: int, graph: int = 1) -> schema.Call:
    return schema.Call(n, 0, "replay", device=0, stream=0, graph=graph)


CAPTURED: list[Marked] = [
    captured(1),
    schema.Return(1, 0),
    captured(2),
    captured(3),
    schema.Return(3, 0),
    schema.Return(2, 0),
]


@pytest.mark.parametrize(
    ("reached", "reach", "call"),
    [
        (0, Reach.UNRECORDED, 0),
        (progress.begin_marker(1), Reach.IN_CALL, 1),
        (progress.end_marker(1), Reach.UNRECORDED, 1),
        (progress.begin_marker(3), Reach.IN_CALL, 3),
        (progress.end_marker(3), Reach.IN_CALL, 2),
        (progress.end_marker(2), Reach.UNRECORDED, 2),
        (progress.begin_marker(77), Reach.CANNOT_TELL, 77),
    ],
)
def test_where_in_a_graph_a_replay_died(reached: int, reach: Reach, call: int) -> None:
    order = order_of(*CAPTURED, replay(4), end(4), replay(5), end(5), replay(6), end(6), replay(7, graph=2), end(7))
    slots = [progress.Slot(0, progress.STREAM, 0, progress.end_marker(7), progress.begin_marker(5))]
    slots.append(progress.Slot(-1, progress.GRAPH, 1, 3, reached))  # the host is one replay ahead
    (position,) = positions(progress.Page(1, 0, "", slots), order)
    assert (position.reach, position.call) == (Reach.IN_CALL, 5)
    assert position.inside == Inside(1, 2, reach, call)


def test_what_was_captured_is_not_taken_for_what_a_stream_ran() -> None:
    order = order_of(*CAPTURED, begin(4), end(4))
    assert list(order.streams) == [(0, 0)]
    assert list(order.graphs) == [1]
    assert not order.ended


def test_a_replay_without_markers_inside_is_named_as_a_whole() -> None:
    (position,) = positions(page((0, progress.end_marker(4), progress.begin_marker(4))), order_of(*CAPTURED, replay(4)))
    assert (position.reach, position.call, position.inside) == (Reach.IN_CALL, 4, None)
