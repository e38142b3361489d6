"""``tensors:PATH``: any tensors that the command saves.

The effect is the largest relative error of any of them, ‖x − b‖₂ / ‖b‖₂.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from firstfault.bisect.probes.probe import NoAnswer, Output, Tolerance, ended_well

if TYPE_CHECKING:
    from firstfault.read.formats.saved_values import Arrays

ROUNDING = {"float64": 1e-9, "float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}
"""By what the values were rounded to, how far right implementations may be apart at the end of a model."""
RIGHT = 0.1
"""Beyond it nothing is right, whatever it was rounded to."""


@dataclass(frozen=True)
class Tensors:
    """Relative error of saved tensors."""

    path: str

    KIND: ClassVar[str] = "tensors"
    UNIT: ClassVar[str] = "relative error"
    SHARE: ClassVar[float] = 1 / 3

    def read(self, output: Output) -> Arrays:
        """The arrays that were saved, as float64."""
        return saved_arrays(output)

    def wrong(self, seen: Arrays) -> str:
        """NaN or Inf in any of them."""
        return not_finite(seen)

    def effect(self, seen: Arrays, other: Arrays) -> float:
        """The largest relative error over all tensors."""
        if alike(seen, other) is False:
            return math.inf
        return max(_relative(seen[name], other[name]) for name in other)

    def tolerance(self, seen: Arrays) -> Tolerance:
        """As the coarsest dtype rounds."""
        return Tolerance(max(ROUNDING[precision(values)] for values in seen.values()), RIGHT)


def saved_arrays(output: Output) -> Arrays:
    """What the probe's file holds.

    Raises:
        NoAnswer: the run failed, or has not written it.
        UnreadableInput: it cannot be read.
    """
    from firstfault.read.formats import saved_values

    ended_well(output)
    if output.saved is None:
        raise NoAnswer("it has not written the file of the probe")
    return saved_values.read(output.saved)


def alike(seen: Arrays, other: Arrays) -> bool:
    """Whether two have the same names and shapes."""
    return seen.keys() == other.keys() and all(seen[name].shape == other[name].shape for name in other)


def not_finite(seen: Arrays) -> str:
    """Which array holds NaN or Inf, and how many; empty if none does. Minus infinity is what masks are."""
    import numpy

    for name, values in seen.items():
        if values.dtype.kind in "fc":
            nan, inf = int(numpy.isnan(values).sum()), int(numpy.isposinf(values.real).sum())
            if nan or inf:
                return f"{name} holds {nan} NaN and {inf} Inf"
    return ""


def precision(values: Any) -> str:
    """What values were rounded to, whatever they are saved as: logits are often made float32 before they are saved."""
    import numpy

    if values.dtype != numpy.float32 or not values.size:
        return str(values.dtype) if str(values.dtype) in ROUNDING else "float64"
    flat = numpy.ascontiguousarray(values).ravel()
    if not (flat.view(numpy.uint32) & 0xFFFF).any():
        return "bfloat16"
    with numpy.errstate(over="ignore", invalid="ignore"):
        halved = flat.astype(numpy.float16).astype(numpy.float32)
    return "float16" if numpy.array_equal(halved, flat, equal_nan=True) else "float32"


def _relative(values: Any, base: Any) -> float:
    import numpy

    one, two = (numpy.ravel(each).astype(numpy.float64) for each in (values, base))
    if not numpy.array_equal(numpy.isfinite(one), numpy.isfinite(two)):
        return math.inf
    finite = numpy.isfinite(two)
    difference = float(numpy.linalg.norm(one[finite] - two[finite]))
    size = float(numpy.linalg.norm(two[finite]))
    return difference / size if size else (math.inf if difference else 0.0)
