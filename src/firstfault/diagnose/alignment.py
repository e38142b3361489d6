"""Two sequences of calls → pairs by operator and order, and what only one of them has, in bounded memory.

    embed  norm  attention  mlp  norm …
    embed  norm  rotary     attention  mlp  norm …
                 └ only in the second

Each thread is aligned with the one that began its calls at the same turn. Where the operators agree calls are paired
as they come; where they do not, the shortest script of insertions and deletions for the calls at hand is sought
(E. W. Myers, An O(ND) Difference Algorithm and Its Variations, 1986), which a longest common subsequence is left by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Generic, Protocol, TypeVar

WINDOW = 1024
"""Calls of each side that are looked at where the operators part."""
MOST_EDITS = 256
"""Of one window; beyond that the two have next to nothing in common there."""
MOST_WAITING = 32_768
"""Calls of one side that wait for their like on the other."""


class Named(Protocol):
    """What can be aligned."""

    @property
    def op(self) -> str:
        """Its operator."""

    @property
    def thread(self) -> int:
        """Its thread, by the turn in which threads began their first call, from 0."""


T = TypeVar("T", bound=Named)


def aligned(left: Iterable[T], right: Iterable[T]) -> Iterator[tuple[T | None, T | None]]:
    """Pairs of calls, and those that only one side has with None for the other, in the order of each thread."""
    lanes: dict[int, _Lane[T]] = {}
    waiting = 0
    for pair in zip_longest(left, right):
        for side, call in enumerate(pair):
            if call is not None:
                lane = lanes.setdefault(call.thread, _Lane())
                before = lane.waiting
                lane.sides[side].append(call)
                yield from lane.pairs(last=False)
                waiting += lane.waiting - before
        if waiting > 2 * MOST_WAITING:
            for lane in lanes.values():
                yield from lane.pairs(last=True)
            waiting = 0
    for lane in lanes.values():
        yield from lane.pairs(last=True)


class _Lane(Generic[T]):
    """One thread of both sides: the calls that have not been paired."""

    def __init__(self) -> None:
        self.sides: tuple[deque[T], deque[T]] = (deque(), deque())

    @property
    def waiting(self) -> int:
        """Calls of both."""
        return len(self.sides[0]) + len(self.sides[1])

    def pairs(self, *, last: bool) -> Iterator[tuple[T | None, T | None]]:
        """What can be told by now; with ``last``, as no more calls come, everything."""
        left, right = self.sides
        while left and right:
            if left[0].op == right[0].op:
                yield left.popleft(), right.popleft()
            elif last or min(len(left), len(right)) >= WINDOW:
                yield from self._resync()
            else:
                return
        if last:
            while left:
                yield left.popleft(), None
            while right:
                yield None, right.popleft()

    def _resync(self) -> Iterator[tuple[T | None, T | None]]:
        """Go on behind the calls that only one side has."""
        left, right = self.sides
        ops = [[call.op for call, _ in zip(side, range(WINDOW), strict=False)] for side in self.sides]
        for from_left, from_right in script(*ops):
            yield left.popleft() if from_left else None, right.popleft() if from_right else None


def script(left: Sequence[str], right: Sequence[str]) -> list[tuple[bool, bool]]:
    """The shortest way to the end of one of two sequences, each step taking one from the left, the right, or both.

    Both are taken only where they are equal. Where that takes more than ``MOST_EDITS``, everything is taken singly.
    """
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(MOST_EDITS + 1):
        trail.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            x = _start(furthest, diagonal, edits)
            y = x - diagonal
            while x < len(left) and y < len(right) and left[x] == right[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if (x >= len(left) or y >= len(right)) and x <= len(left) and y <= len(right):
                return _steps(trail, x, y)
    return [(True, False)] * len(left) + [(False, True)] * len(right)


def _start(furthest: dict[int, int], diagonal: int, edits: int) -> int:
    """How far to the left a diagonal begins: below the one above it, or beside the one before it."""
    if _is_down(furthest, diagonal, edits):
        return furthest[diagonal + 1]
    return furthest[diagonal - 1] + 1


def _is_down(furthest: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether the best way to a diagonal takes one from the right, and not from the left."""
    return diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])


def _steps(trail: list[dict[int, int]], x: int, y: int) -> list[tuple[bool, bool]]:
    """The way to (x, y), from its end to its beginning, turned round."""
    steps: list[tuple[bool, bool]] = []
    for edits in range(len(trail) - 1, -1, -1):
        furthest, diagonal = trail[edits], x - y
        start = _start(furthest, diagonal, edits)
        steps += [(True, True)] * (x - start)
        x, y = start, start - diagonal
        if edits:
            down = _is_down(furthest, diagonal, edits)
            steps.append((False, True) if down else (True, False))
            x, y = (x, y - 1) if down else (x - 1, y)
    return steps[::-1]
