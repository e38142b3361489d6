"""Whether what two calls were given or gave is the same, as far as it was recorded.

return  max  3.1 | nan
return  NaN  0 | 16

Shapes, dtypes and plain values are held against each other exactly; the statistics of tensors within what the dtype
can be asked for, relative to the tensor's largest magnitude: two kernels that are both right round differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

import msgspec

from firstfault.read.formats.values import inside
from firstfault.read.tensors import labels, largest_magnitude
from firstfault.read.tolerances import TOLERANCES
from firstfault.record import schema

MOST_DIFFERENCES = 16
"""Of one call that are told."""

_ADDRESS = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)

Named: TypeAlias = Iterable[tuple[str, schema.Value]]


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not the same: of which value, what of it, and how it is on the left and on the right."""

    name: str
    what: str
    left: str
    right: str


class ElementDifference(msgspec.Struct, frozen=True):
    """How two tensors that both sides saved differ, element by element.

    Attributes:
        name: of the value.
        count, differ: how many elements there are, and how many differ by more than the dtype allows.
        first: the index of the first that does; ``left`` and ``right`` are its values.
        apart, relative: the largest distance of two finite elements, and the largest relative to the larger of the two.
    """

    name: str
    count: int
    differ: int
    first: list[int]
    left: str
    right: str
    apart: float
    relative: float


class Compared(NamedTuple):
    """How two sets of values compare.

    Attributes:
        differences: what is known to differ.
        measured: whether the values of all tensors among them were recorded on both sides.
    """

    differences: list[Difference]
    measured: bool

    @property
    def same(self) -> bool:
        """Whether they are known to be the same."""
        return self.measured and not self.differences


def tolerance(dtype: str) -> tuple[float, float]:
    """Relative and absolute; 0 for what must be equal."""
    return TOLERANCES.get(dtype, (0.0, 0.0))


def compare(left: Named, right: Named) -> Compared:
    """Hold named values against each other, by name and order."""
    differences: list[Difference] = []
    measured = True
    for one, other in zip_longest(_leaves(left), _leaves(right)):
        if one is None or other is None or one[0] != other[0]:
            names = [leaf[0] if leaf is not None else "nothing" for leaf in (one, other)]
            differences.append(Difference(names[0], "structure", *names))
            break
        known = _leaf(one[0], one[1], other[1], differences)
        measured = measured and known
    return Compared(differences[:MOST_DIFFERENCES], measured)


def _leaves(values: Named) -> Iterator[tuple[str, schema.Value]]:
    """Tensors and plain values, containers before what is in them."""
    for name, value in values:
        if isinstance(value, (schema.Sequence, schema.Mapping)):
            yield name, f"{value.name} of {value.length}"
            yield from _leaves((name + label, item) for label, item in zip(labels(value), inside(value), strict=False))
        else:
            yield name, value


def _leaf(name: str, left: schema.Value, right: schema.Value, differences: list[Difference]) -> bool:
    """Add what differs; whether all was recorded that could."""
    if isinstance(left, schema.Tensor) and isinstance(right, schema.Tensor):
        return _tensors(name, left, right, differences)
    if type(left) is not type(right):
        differences.append(Difference(name, "type", *map(_kind, (left, right))))
    elif not _equal(left, right):
        differences.append(Difference(name, "value", *map(_text, (left, right))))
    return not isinstance(left, schema.Opaque) or left.repr is not None


def _equal(left: schema.Value, right: schema.Value) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=TOLERANCES["torch.float64"][0])
    return _text(left) == _text(right)


def _kind(value: schema.Value) -> str:
    return value.name if isinstance(value, schema.Opaque) else type(value).__name__.lower()


def _text(value: schema.Value) -> str:
    """A plain value without addresses, which no two processes share."""
    if isinstance(value, schema.Opaque):
        about = value.repr or f"shape={value.shape} dtype={value.dtype}"
        return f"{value.name} {_ADDRESS.sub('0x…', about)}"
    if isinstance(value, schema.Number):
        return value.text
    return repr(value)


def _tensors(name: str, left: schema.Tensor, right: schema.Tensor, differences: list[Difference]) -> bool:
    before = len(differences)
    if left.shape != right.shape:
        differences.append(Difference(name, "shape", str(left.shape), str(right.shape)))
    if left.dtype != right.dtype:
        differences.append(Difference(name, "dtype", left.dtype, right.dtype))
    if len(differences) > before or 0 in left.shape:
        return True
    measured = [(what, one, other) for what, one, other in _statistics(left, right) if None not in (one, other)]
    relative, absolute = tolerance(left.dtype)
    allowed = absolute + relative * max(map(largest_magnitude, (left, right)))
    for what, one, other in measured:
        exact = what in ("NaN", "Inf")
        if not _close(one, other, 0 if exact else allowed):
            differences.append(Difference(name, what, str(one), str(other)))
    return any(what == "min" for what, _, _ in measured)


_Statistic: TypeAlias = schema.Statistic | None


def _statistics(left: schema.Tensor, right: schema.Tensor) -> list[tuple[str, _Statistic, _Statistic]]:
    return [
        ("NaN", left.nan_count, right.nan_count),
        ("Inf", left.inf_count, right.inf_count),
        ("min", left.min, right.min),
        ("max", left.max, right.max),
        ("mean", left.mean, right.mean),
    ]


def _close(left: _Statistic, right: _Statistic, allowed: float) -> bool:
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return left == right or abs(left - right) <= allowed
    return left == right
