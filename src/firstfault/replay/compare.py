"""Two tensors, or two results, held against each other: where they differ, and by how much.

    return differs in 3 of 1,024 elements, most at [0, 7]: 0.25 instead of 0.5

NaN equals NaN. Layouts count too: a kernel that gives another stride breaks the one that assumes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from firstfault.read.tolerances import TOLERANCES
from firstfault.replay.tensors import is_plain
from firstfault.replay.verdict import Difference

PIECE = 2**24
"""Elements that are compared at once: some hundred MB of intermediate values."""


class Pair(NamedTuple):
    """One thing that is compared: its name, what it should be, and what it is."""

    name: str
    expected: Any
    actual: Any


class Compared(NamedTuple):
    """What came of some pairs."""

    differences: list[Difference]
    exact: bool


def compare(pairs: Iterable[Pair]) -> Compared:
    """Hold pairs of values against each other."""
    differences: list[Difference] = []
    exact = True
    for pair in pairs:
        found, same = _pair(pair)
        differences += found
        exact = exact and same
    return Compared(differences, exact and not differences)


def _pair(pair: Pair) -> tuple[list[Difference], bool]:
    expected, actual = pair.expected, pair.actual
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        return _tensors(pair.name, expected.detach(), actual.detach())
    if type(expected) is not type(actual):
        return [Difference(pair.name, "type", type(expected).__name__, type(actual).__name__)], False
    if _equal(expected, actual):
        return [], True
    return [Difference(pair.name, "value", repr(expected)[:200], repr(actual)[:200])], False


def _equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float):
        if math.isnan(expected):
            return math.isnan(actual)
        return math.isclose(expected, actual, rel_tol=TOLERANCES["torch.float64"][0])
    return bool(expected == actual)


def _tensors(name: str, expected: torch.Tensor, actual: torch.Tensor) -> tuple[list[Difference], bool]:
    expected, actual = expected.resolve_conj().resolve_neg(), actual.resolve_conj().resolve_neg()
    for what in ("dtype", "layout", "shape"):
        one, other = (_shown(getattr(tensor, what)) for tensor in (expected, actual))
        if one != other:
            return [Difference(name, what, one, other)], False
    if not is_plain(expected) or not is_plain(actual):
        return _unusual(name, expected, actual)
    found = values(name, expected, actual.to("cpu"))
    if not found and _steps(expected) != _steps(actual):
        found = [Difference(name, "stride", str(expected.stride()), str(actual.stride()))]
    return found, not found and _same_bits(expected, actual)


def _shown(value: Any) -> str:
    return str(tuple(value) if isinstance(value, torch.Size) else value)


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides that lead anywhere."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [] if tensor.numel() == 0 else [step for extent, step in pairs if extent > 1]


def values(name: str, expected: torch.Tensor, actual: torch.Tensor) -> list[Difference]:
    """What differs in the values of two CPU tensors of one shape and dtype."""
    relative, absolute = TOLERANCES.get(str(expected.dtype), (0.0, 0.0))
    flat, other = expected.reshape(-1), actual.reshape(-1)
    total, first, worst, at = 0, -1, -1.0, -1
    for begin in range(0, flat.numel(), PIECE):
        one, two = flat[begin : begin + PIECE], other[begin : begin + PIECE]
        bad, by = _differing(one, two, relative, absolute)
        count = int(bad.sum())
        if count == 0:
            continue
        if first < 0:
            first = begin + int(bad.to(torch.uint8).argmax())
        by = torch.where(bad, by, -1.0)
        here = int(by.argmax())
        if float(by[here]) > worst:
            worst, at = float(by[here]), begin + here
        total += count
    if not total:
        return []
    return [_difference(name, expected, actual, total, first, at, (relative, absolute))]


def _differing(
    one: torch.Tensor, two: torch.Tensor, relative: float, absolute: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements differ, and by how much; of what is no number on one side alone, by infinity."""
    if not (one.is_floating_point() or one.is_complex()):
        return one != two, (one.to(torch.float64) - two.to(torch.float64)).abs()
    wide = torch.complex128 if one.is_complex() else torch.float64
    left, right = one.to(wide), two.to(wide)
    by = (left - right).abs()
    same = (left == right) | (left.isnan() & right.isnan())
    close = by <= absolute + relative * left.abs()
    finite = left.isfinite() & right.isfinite()
    bad = ~(same | (close & finite))
    return bad, torch.where(finite, by, torch.inf)


def _difference(
    name: str,
    expected: torch.Tensor,
    actual: torch.Tensor,
    total: int,
    first: int,
    at: int,
    allowed: tuple[float, float],
) -> Difference:
    one, two = expected.reshape(-1)[at], actual.reshape(-1)[at]
    by = abs(two.item() - one.item())
    size = abs(one.item())
    return Difference(
        name,
        "values",
        str(one.item()),
        str(two.item()),
        total,
        expected.numel(),
        index_of(at, tuple(expected.shape)),
        f"{by:.6g}",
        f"{by / size:.6g}" if size else "inf",
        index_of(first, tuple(expected.shape)),
        allowed,
    )


def index_of(flat: int, shape: tuple[int, ...]) -> list[int]:
    """The index of the ``flat``-th element in row-major order."""
    found = []
    for extent in reversed(shape):
        found.append(flat % extent)
        flat //= extent
    return found[::-1]


def _unusual(name: str, expected: torch.Tensor, actual: torch.Tensor) -> tuple[list[Difference], bool]:
    """Tensors that consist of others: their parts one by one."""
    ones, others = parts(expected), parts(actual)
    if len(ones) != len(others):
        return [Difference(name, "parts", str(len(ones)), str(len(others)))], False
    compared = compare(Pair(name, one, other) for one, other in zip(ones, others, strict=True))
    return compared.differences, compared.exact


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that an unusual one consists of."""
    if tensor.is_nested:
        return [*tensor.unbind()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_conj() or tensor.is_neg():
        return [tensor.resolve_conj().resolve_neg()]
    return [tensor.to_dense()] if tensor.layout != torch.strided else []


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype agree bit for bit, NaN of any kind being NaN."""
    if one.numel() == 0:
        return True
    left, right = one.reshape(-1), two.to("cpu").reshape(-1)
    if (one.is_floating_point() and one.dtype.itemsize > 1) or one.is_complex():
        return bool(((left == right) | (left.isnan() & right.isnan())).all())
    left, right = left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)
    return bool(torch.equal(left, right))
