"""A small subset that still has a property: delta debugging.

    minimal(range(1000), lambda kept: 123 in kept and 456 in kept)  →  [123, 456]

Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28 (2002), algorithm ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], still: Callable[[Sequence[T]], bool]) -> list[T]:
    """A subset, not empty, that has the property and none of whose parts that are tried can be left out.

    Args:
        items: all of them, which have the property.
        still: whether a subset, in the same order, has it.
    """
    kept = list(items)
    pieces = 2
    while len(kept) > 1:
        parts = _parts(kept, pieces)
        smaller = next((part for part in parts if still(part)), None)
        if smaller is not None:
            kept, pieces = smaller, 2
            continue
        smaller = None if pieces == 2 else next((rest for rest in _rests(parts) if still(rest)), None)
        if smaller is not None:
            kept, pieces = smaller, max(pieces - 1, 2)
        elif pieces < len(kept):
            pieces = min(len(kept), 2 * pieces)
        else:
            break
    return kept


def _parts(items: list[T], count: int) -> list[list[T]]:
    ends = [len(items) * index // count for index in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends) if begin < end]


def _rests(parts: list[list[T]]) -> list[list[T]]:
    """All but one of the parts, for each."""
    return [[item for other in parts if other is not part for item in other] for part in parts]
