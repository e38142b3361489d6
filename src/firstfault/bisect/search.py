"""The smallest set of candidates that fails, by delta debugging.

    minimal_set(range(10), lambda chosen: {3, 7} <= chosen)  →  [7, 3]

What comes out fails, and does not fail without any one of its members: it is 1-minimal, as the result of ddmin is
(Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002). Prefixes are halved in place of
ddmin's subsets and complements, which finds one culprit among n in ⌈log2 n⌉ + 1 tests where ddmin takes up to 2 log2 n,
and each further one of a set that fails only together in as many again. Nothing need be monotone for it: each step
keeps a set that fails and one with a member less that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Inconsistent(Exception):
    """A set failed and did not fail, so that no search can end: it fails by chance."""


def minimal_set(candidates: Iterable[T], fails: Callable[[frozenset[T]], bool]) -> list[T]:
    """The members of a smallest failing set; nothing fails with no candidate, and all together fail.

    Args:
        candidates: what to search, without repeats; the order decides which of several sets is found.
        fails: whether these together fail; it is asked again for what it was asked before.

    Raises:
        Inconsistent: the answers contradict each other.
    """
    pool, needed = list(candidates), list[T]()
    while pool:
        length = _shortest_prefix(pool, needed, fails)
        needed.append(pool[length - 1])
        pool = pool[: length - 1]
        if fails(frozenset(needed)):
            return reduced(needed, fails)
    raise Inconsistent


def reduced(chosen: Sequence[T], fails: Callable[[frozenset[T]], bool]) -> list[T]:
    """A failing set without what it fails without."""
    kept, left = list(chosen), list(chosen)
    while len(kept) > 1 and left:
        without = [member for member in kept if member != left[0]]
        if fails(frozenset(without)):
            kept, left = without, list(without)
        else:
            left.pop(0)
    return kept


def _shortest_prefix(pool: Sequence[T], needed: Sequence[T], fails: Callable[[frozenset[T]], bool]) -> int:
    """How many of the pool it takes, together with what is needed; the last of them is needed too."""
    good, bad = 0, len(pool)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fails(frozenset((*needed, *pool[:middle]))):
            bad = middle
        else:
            good = middle
    if not needed and bad == 1 and fails(frozenset()):
        raise Inconsistent  # not even the first candidate is needed
    return bad
