"""``logits:PATH``: logits whose last dimension is the vocabulary.

The effect is the root mean square change of the log-probabilities, in nats: over all positions and tokens, weighted
with the probability that the other run gives to a token. Logits that are moved by a constant are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from firstfault.bisect.probes.probe import NoAnswer, Output, Tolerance
from firstfault.bisect.probes.tensors import alike, not_finite, precision, saved_arrays

if TYPE_CHECKING:
    from firstfault.read.formats.saved_values import Arrays

RIGHT = 0.25
LEAST = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""By what the logits were rounded to, in nats: of a logit of 16, bfloat16 keeps 0.06."""


@dataclass(frozen=True)
class Logits:
    """Change of the distribution of the next token."""

    path: str

    KIND: ClassVar[str] = "logits"
    UNIT: ClassVar[str] = "nats"
    SHARE: ClassVar[float] = 1 / 3

    def read(self, output: Output) -> Arrays:
        """The logits that were saved."""
        arrays = saved_arrays(output)
        flat = [name for name, values in arrays.items() if values.ndim == 0 or values.shape[-1] < 2]
        if flat:
            raise NoAnswer(f"{flat[0]} has no dimension of a vocabulary")
        return arrays

    def wrong(self, seen: Arrays) -> str:
        """NaN or Inf in any of them."""
        return not_finite(seen)

    def effect(self, seen: Arrays, other: Arrays) -> float:
        """The root mean square change of log-probabilities, of the worst array."""
        if not alike(seen, other):
            return math.inf
        return max(_change(seen[name], other[name]) for name in other)

    def tolerance(self, seen: Arrays) -> Tolerance:
        """As the coarsest dtype rounds."""
        return Tolerance(max(LEAST[precision(values)] for values in seen.values()), RIGHT)


def _change(values: Any, base: Any) -> float:
    import numpy

    one, two = _log_probabilities(values), _log_probabilities(base)
    weight = numpy.exp(two)
    with numpy.errstate(invalid="ignore"):
        squares = weight * numpy.where(weight > 0, one - two, 0.0) ** 2
    total = float(squares.sum()) / max(1, math.prod(two.shape[:-1]))
    return math.sqrt(total) if math.isfinite(total) else math.inf


def _log_probabilities(logits: Any) -> Any:
    import numpy

    values = logits.astype(numpy.float64)
    values = values - values.max(axis=-1, keepdims=True)
    return values - numpy.log(numpy.exp(values).sum(axis=-1, keepdims=True))
