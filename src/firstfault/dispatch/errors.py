"""How far two results of an operator are apart.

    difference(got, expected)   # Difference(max_abs=0.0078, relative=0.0017, cosine=0.99999, ulp=1.0, error=0.0031, …)

The error that is held against a tolerance is ``max |got - expected| / (|expected| + rms(expected))``: a sum that
cancels to nearly nothing is no error of its terms, and a tensor of small values is held to its own scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 2 * 2.0**-10,
    torch.bfloat16: 2 * 2.0**-7,
}
"""Of the error: two units of the last place, and of float32 what sums of thousands of terms in other orders make."""

LARGEST_WHOLE = 2**27
"""Values of a tensor whose numbers are of all of it; of a larger one they are of those that differ alone."""
MOST_DIFFERING = 2**22
EXACT = 0.0
"""Tolerance of integers and truth values."""


@dataclass(frozen=True)
class Difference:
    """How far one result is from another.

    Attributes:
        max_abs: the largest difference of two values.
        relative: norm of the difference over norm of what was expected.
        cosine: of the two as vectors.
        ulp: the largest difference in units of the last place of what was expected, or of its root mean square where
            that is larger: of sums that cancel, the last place says nothing.
        error: see the module; infinite where one side alone is not finite, or shapes are not equal.
        tolerance: what the error may be.
        why: what is wrong where it is more than a difference.
    """

    max_abs: float = 0.0
    relative: float = 0.0
    cosine: float = 1.0
    ulp: float = 0.0
    error: float = 0.0
    tolerance: float = EXACT
    why: str = ""

    @property
    def over(self) -> float:
        """The error over its tolerance: above one is past it."""
        if self.tolerance == 0:
            return 0.0 if self.error == 0 else math.inf
        return self.error / self.tolerance


def tolerance_of(dtype: torch.dtype, relative: float | None) -> float:
    """What the error of a dtype may be; ``relative`` for all that are not exact, where it is given."""
    default = TOLERANCES.get(dtype, EXACT)
    return default if relative is None or default == EXACT else relative


def worst(found: list[Difference]) -> Difference:
    """Of the differences of several tensors, each number at its worst and the reasons of the worst one."""
    if not found:
        return Difference()
    last = max(found, key=lambda one: one.over)
    return Difference(
        max(one.max_abs for one in found),
        max(one.relative for one in found),
        min(one.cosine for one in found),
        max(one.ulp for one in found),
        last.error,
        last.tolerance,
        last.why,
    )


def difference(
    got: torch.Tensor, expected: torch.Tensor, relative: float | None = None, dtype: torch.dtype | None = None
) -> Difference:
    """How far a result is from what was expected.

    Args:
        got, expected: of equal shape, on one device.
        relative: the tolerance, in place of the dtype's own.
        dtype: that the operator was given, which its result may be wider than.
    """
    coarsest = got.dtype if dtype is None or not dtype.is_floating_point or not got.is_floating_point() else dtype
    allowed = tolerance_of(coarsest, relative)
    if got.shape != expected.shape:
        return Difference(
            math.inf,
            math.inf,
            0.0,
            math.inf,
            math.inf,
            allowed,
            f"shape {tuple(got.shape)}, not {tuple(expected.shape)}",
        )
    if torch.equal(got, expected):
        return Difference(tolerance=allowed)
    count, (got, expected) = got.numel(), _differing(got, expected)
    numbers = _measures(_wide(got), _wide(expected), _units(coarsest))
    max_abs, relative_norm, cosine, ulp, error, broken = numbers
    why = f"{int(broken)} of {count} values are NaN or infinite on one side alone" if broken else ""
    if broken:
        error = math.inf
    return Difference(max_abs, relative_norm, cosine, ulp, error, allowed, why)


def _differing(got: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of large tensors the values that differ, as many as can be held in float64 beside a KV cache; else both whole."""
    if got.numel() <= LARGEST_WHOLE:
        return got, expected
    places = (got != expected).nonzero()[:MOST_DIFFERING].unbind(-1)
    return got[places], expected[places]


def _wide(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.detach().double().flatten()


def _units(dtype: torch.dtype) -> tuple[float, float]:
    """Distance from one to the next number, and the smallest normal number; for integers, one and one."""
    if not dtype.is_floating_point:
        return 1.0, 1.0
    info = torch.finfo(dtype)
    return info.eps, info.smallest_normal


def _measures(got: torch.Tensor, expected: torch.Tensor, units: tuple[float, float]) -> list[float]:
    """The numbers of a difference, and how many values are not finite on one side alone; one wait for the device."""
    eps, smallest = units
    same = (got == expected) | (got.isnan() & expected.isnan())
    finite = got.isfinite() & expected.isfinite()
    broken = ~(same | finite)
    zero = torch.zeros((), dtype=got.dtype, device=got.device)
    a, b = torch.where(finite, got, zero), torch.where(finite, expected, zero)
    apart = (a - b).abs()
    magnitude = b.abs()
    scale = b.square().sum().div(finite.sum().clamp(min=1)).sqrt()
    place = torch.pow(2.0, torch.floor(torch.log2(torch.maximum(magnitude, scale).clamp(min=smallest)))) * eps
    norm = b.norm()
    tiny = torch.finfo(torch.float64).tiny
    cosine = torch.where(
        (a.norm() == 0) | (norm == 0),
        (apart.max() == 0).double(),
        torch.dot(a, b) / (a.norm() * norm).clamp(min=tiny),
    )
    return torch.stack(
        [
            apart.max(),
            torch.where(apart.max() == 0, zero, apart.norm() / norm.clamp(min=tiny)),
            cosine,
            (apart / place).max(),
            (apart / (magnitude + scale).clamp(min=tiny)).max(),
            broken.sum().double(),
        ]
    ).tolist()
