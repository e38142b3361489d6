"""Which call wrote each byte last: held against a memory of single bytes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read import memory
from firstfault.read.memory import Extent, Layer, Memory, extent_of
from firstfault.record import schema
from tests.unit.read.samples import tensor

DENSE = st.builds(lambda start, length: Extent(start, start + length), st.integers(0, 60), st.integers(1, 40))


def strided(start: int, rows: int, pitch: int, width: int) -> Extent:
    return Extent(start, start + (rows - 1) * pitch + width, pitch, width)


STRIDED = st.builds(strided, st.integers(0, 40), st.integers(2, 4), st.sampled_from([8, 12]), st.integers(1, 7))
EXTENTS = DENSE | STRIDED


def bytes_of(extent: Extent) -> set[int]:
    every = range(extent.start, extent.end)
    return {at for at in every if not extent.pitch or (at - extent.start) % extent.pitch < extent.width}


def write(space: Memory[int], extent: Extent, writer: int, *, possible: bool = False) -> None:
    space.write(Layer(extent, writer, possible, None))


def readers(space: Memory[int], extent: Extent) -> set[int]:
    return {layer.writer for layer in space.read(extent)}


@given(st.lists(EXTENTS, max_size=7), EXTENTS)
def test_no_last_writer_is_missed(writes: list[Extent], read: Extent) -> None:
    space: Memory[int] = Memory()
    model: dict[int, int] = {}
    for n, extent in enumerate(writes):
        write(space, extent, n)
        model |= dict.fromkeys(bytes_of(extent), n)
    assert {model[at] for at in bytes_of(read) if at in model} <= readers(space, read)


@given(st.lists(DENSE, max_size=12), DENSE)
def test_dense_writes_are_told_exactly(writes: list[Extent], read: Extent) -> None:
    space: Memory[int] = Memory()
    model: dict[int, int] = {}
    for n, extent in enumerate(writes):
        write(space, extent, n)
        model |= dict.fromkeys(bytes_of(extent), n)
    assert readers(space, read) == {model[at] for at in bytes_of(read) if at in model}


@given(EXTENTS, EXTENTS)
def test_covering_and_meeting_are_never_wrong(first: Extent, second: Extent) -> None:
    if first.covers(second):
        assert bytes_of(second) <= bytes_of(first)
    if not first.meets(second):
        assert not bytes_of(first) & bytes_of(second)


def test_columns_side_by_side_do_not_hide_each_other() -> None:
    space: Memory[int] = Memory()
    query, key = strided(0, 4, 768, 512), strided(512, 4, 768, 256)
    write(space, query, 1)
    write(space, key, 2)
    assert readers(space, query) == {1}
    assert readers(space, key) == {2}
    assert readers(space, Extent(0, 3072)) == {1, 2}
    write(space, Extent(0, 3072), 3)
    assert readers(space, query) == {3}


def test_a_possible_write_hides_nothing_but_the_possible_one_before() -> None:
    space: Memory[int] = Memory()
    whole = Extent(0, 64)
    write(space, whole, 1)
    write(space, whole, 2, possible=True)
    write(space, whole, 3, possible=True)
    assert [layer.writer for layer in space.read(whole)] == [3, 1]


def test_what_was_written_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_SPANS", 100)
    space: Memory[int] = Memory()
    for n in range(1000):
        write(space, Extent(n * 10, n * 10 + 5), n)
    assert readers(space, Extent(9990, 9995)) == {999}
    assert readers(space, Extent(0, 5)) == set()


@pytest.mark.parametrize(("shape", "stride"), list(product([(4, 6), (2, 3, 4), (3, 1, 5)], [0, 1])))
def test_dense_tensors_take_all_bytes_between(shape: tuple[int, ...], stride: int) -> None:
    steps = [1] * len(shape)
    order = range(len(shape) - 2, -1, -1) if stride == 0 else range(1, len(shape))
    for dim in order:
        beside = dim + 1 if stride == 0 else dim - 1
        steps[dim] = steps[beside] * shape[beside]
    found = extent_of(tensor(*shape, ptr=1000, stride=tuple(steps), contiguous=stride == 0))
    elements = shape[0] * shape[1] * (shape[2] if len(shape) > 2 else 1)
    assert found == Extent(1000, 1000 + 2 * elements)


def test_slices_have_gaps_and_expanded_ones_no_more_bytes_than_there_are() -> None:
    sliced = tensor(17, 4, 64, ptr=1000, stride=(768, 64, 1), contiguous=False)
    assert extent_of(sliced) == Extent(1000, 1000 + 2 * (16 * 768 + 256), 1536, 512)
    expanded = tensor(17, 64, ptr=1000, stride=(0, 1), contiguous=False)
    assert extent_of(expanded) == Extent(1000, 1128)


@pytest.mark.parametrize(
    "described",
    [
        tensor(4),
        tensor(0, 4, ptr=8),
        tensor(-1, 4, ptr=8),
        tensor(4, ptr=8, stride=(-3,), contiguous=False),
        tensor(4, ptr=8, nbytes=0),
    ],
)
def test_what_has_no_known_place(described: schema.Tensor) -> None:
    assert extent_of(described) is None
