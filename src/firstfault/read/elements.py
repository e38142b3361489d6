"""Two saved tensors, element by element: how many differ, by how much at most, and where first.

Elements(key="result", size=64, differ=3, first=(1, 7), left="0.5", right="0.75", apart=0.25, relative=0.5)

Values come from the archives in pieces, with nothing in them executed; two NaN are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from firstfault.errors import UnreadableInput
from firstfault.read.formats import safetensors_file, torch_archive
from firstfault.read.formats.saved_tensor import Readers, SavedTensor, is_readable

if TYPE_CHECKING:
    from firstfault.read.formats.saved_tensor import Array

Tolerance = Callable[[str], "tuple[float, float]"]
"""Relative and absolute, by dtype."""


class Elements(NamedTuple):
    """How the elements of two tensors of one shape and dtype compare.

    Attributes:
        key: of the tensor in both dumps.
        size, differ: how many elements there are, and how many are further apart than they may be.
        first: the index of the first that is, empty for none; ``left`` and ``right`` are its values.
        apart, relative: the largest distance of two finite elements, and the largest relative to the larger of the two.
    """

    key: str
    size: int
    differ: int
    first: tuple[int, ...]
    left: str
    right: str
    apart: float
    relative: float


class Compared(NamedTuple):
    """What was compared of two files: how their tensors compare by key, and the keys of those that could not be."""

    elements: dict[str, Elements]
    unread: list[str]


@contextmanager
def opened(path: Path) -> Iterator[Readers]:
    """The tensors of one side of a dump.

    Raises:
        UnreadableInput: it is damaged.
    """
    with (torch_archive if path.suffix == ".pt" else safetensors_file).opened(path) as readers:
        yield readers


def compare(left: Path, right: Path, tolerance: Tolerance) -> Compared:
    """Hold the tensors that two files both have against each other, where shape and dtype are the same.

    Raises:
        UnreadableInput: one of them is damaged.
    """
    found, unread = {}, []
    with opened(left) as lefts, opened(right) as rights:
        for key in [key for key in lefts if key in rights]:
            (one, ones), (other, others) = lefts[key], rights[key]
            if one.shape != other.shape or one.dtype != other.dtype:
                continue
            if 0 in one.shape:
                found[key] = Elements(key, 0, 0, (), "", "", 0.0, 0.0)
            elif is_readable(one) and is_readable(other):
                found[key] = _compared(key, one, ones(), others(), tolerance(one.dtype))
            else:
                unread.append(key)
    return Compared(found, unread)


def _compared(
    key: str, saved: SavedTensor, left: Iterator[Array], right: Iterator[Array], tolerance: tuple[float, float]
) -> Elements:
    totals = _Totals(*tolerance)
    for one, other in zip_longest(left, right):
        if one is None or other is None or one.size != other.size:
            raise UnreadableInput("two tensors of the same shape do not have as many elements")
        totals.add(one, other)
    first = _index(totals.first, saved.shape) if totals.differ else ()
    return Elements(key, totals.count, totals.differ, first, totals.left, totals.right, totals.apart, totals.relative)


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where the element stands that is number ``at``."""
    found = []
    for extent in reversed(shape):
        at, rest = divmod(at, extent)
        found.append(rest)
    return tuple(reversed(found))


class _Totals:
    """What differs, gathered piece by piece."""

    def __init__(self, relative: float, absolute: float) -> None:
        self._relative, self._absolute = relative, absolute
        self.count = self.differ = 0
        self.first = -1
        self.left = self.right = ""
        self.apart = self.relative = 0.0

    def add(self, left: Array, right: Array) -> None:
        """Take in one piece of both."""
        import numpy

        exact = left.dtype.kind not in "fc"
        unlike = left != right
        if not exact:
            unlike &= ~(numpy.isnan(left) & numpy.isnan(right))
        at = numpy.flatnonzero(unlike)
        if at.size:
            far = self._far(left[at], right[at], exact=exact)
            self.differ += int(far.sum())
            if self.first < 0 and far.any():
                where = int(at[far.argmax()])
                self.first = self.count + where
                self.left, self.right = str(left[where]), str(right[where])
        self.count += left.size

    def _far(self, left: Array, right: Array, *, exact: bool) -> Array:
        """Which of some elements that are not equal are further apart than they may be; the largest distances."""
        import numpy

        wide = numpy.complex128 if left.dtype.kind == "c" else numpy.float64
        one, other = left.astype(wide), right.astype(wide)
        with numpy.errstate(all="ignore"):
            apart = numpy.abs(one - other)
            size = numpy.maximum(numpy.abs(one), numpy.abs(other))
            finite = numpy.isfinite(apart) & numpy.isfinite(size)
            far: Array = ~finite | (apart > (0.0 if exact else self._absolute + self._relative * size))
            if exact:
                far = numpy.ones(apart.shape, dtype=bool)  # beyond 2⁵³ two integers may widen to the same
        if finite.any():
            self.apart = max(self.apart, float(apart[finite].max()))
            relative = apart[finite] / numpy.where(size[finite] > 0, size[finite], 1.0)
            self.relative = max(self.relative, float(relative.max()))
        return far
