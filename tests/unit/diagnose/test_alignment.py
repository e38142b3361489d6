"""Aligning two sequences of calls: nothing is lost or turned round, and no shorter script exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose import alignment
from firstfault.diagnose.alignment import aligned, script

OPS = st.lists(st.sampled_from("abc"), max_size=14)


@dataclass(frozen=True)
class Call:
    op: str
    n: int = 0
    thread: int = 0


def calls(ops: str | list[str], thread: int = 0) -> list[Call]:
    return [Call(op, n, thread) for n, op in enumerate(ops, 1)]


def shortest(left: list[str], right: list[str]) -> int:
    """Edits to the end of one of the two, by trying all: the definition, for short sequences."""

    def slid(x: int, y: int) -> tuple[int, int]:
        while x < len(left) and y < len(right) and left[x] == right[y]:
            x, y = x + 1, y + 1
        return x, y

    reached = {slid(0, 0)}
    edits = 0
    while not any(x == len(left) or y == len(right) for x, y in reached):
        reached = {slid(x + 1, y) for x, y in reached} | {slid(x, y + 1) for x, y in reached}
        edits += 1
    return edits


@given(OPS, OPS)
def test_a_script_is_possible_and_the_shortest(left: list[str], right: list[str]) -> None:
    x = y = edits = 0
    for from_left, from_right in script(left, right):
        assert from_left or from_right
        if from_left and from_right:
            assert left[x] == right[y]
        x, y, edits = x + from_left, y + from_right, edits + (from_left != from_right)
    assert x == len(left) or y == len(right)
    assert x <= len(left)
    assert y <= len(right)
    assert edits == shortest(left, right)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2))),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2))),
)
def test_every_call_comes_once_and_in_its_threads_order(
    left: list[tuple[str, int]], right: list[tuple[str, int]]
) -> None:
    sides = [[Call(op, n, thread) for n, (op, thread) in enumerate(side)] for side in (left, right)]
    pairs = list(aligned(*sides))
    for index, side in enumerate(sides):
        for thread in range(3):
            got = [pair[index] for pair in pairs if (call := pair[index]) is not None and call.thread == thread]
            assert got == [call for call in side if call.thread == thread]
    for one, other in pairs:
        assert one is None or other is None or (one.op, one.thread) == (other.op, other.thread)


def unpaired(left: list[Call], right: list[Call]) -> list[tuple[int, str]]:
    return [
        (index, call.op) for pair in aligned(left, right) for index, call in enumerate(pair) if call and None in pair
    ]


def test_inserted_missing_and_renamed_calls_far_apart() -> None:
    base = list("abcdefg" * 2000)
    changed = base.copy()
    del changed[9001]
    changed.insert(5000, "x")
    changed[100] = "y"
    assert unpaired(calls(base), calls(changed)) == [(0, base[100]), (1, "y"), (1, "x"), (0, base[9001])]


def test_threads_that_take_turns_differently_do_not_disturb_each_other() -> None:
    one, other = calls("abcabc", 0), calls("xyzxyz", 1)
    taking_turns = [call for pair in zip(one, other, strict=True) for call in pair]
    assert unpaired([*one, *other], taking_turns) == []


def test_two_that_have_nothing_in_common_end_and_lose_nothing() -> None:
    left, right = calls([f"l{n}" for n in range(5000)]), calls([f"r{n}" for n in range(3000)])
    assert len(unpaired(left, right)) == 8000


def test_no_more_calls_wait_than_are_looked_at_together() -> None:
    taken = 0

    def side(name: str) -> Iterator[Call]:
        nonlocal taken
        for n in range(6000):
            taken += 1
            yield Call("step" if n % 7 else name, n)

    waiting = []
    for one, other in aligned(side("left"), side("right")):
        taken -= (one is not None) + (other is not None)
        waiting.append(taken)
    assert alignment.WINDOW < max(waiting) <= 2 * alignment.WINDOW + 2
    assert waiting[-1] == 0
