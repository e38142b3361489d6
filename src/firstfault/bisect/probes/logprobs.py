"""``logprobs:PATH`` or ``logprobs`` with ``--serve``: the log-probability of each token of a text.

The effect is their root mean square change in nats. The negative log-likelihood of a text is the better measure of
two: it moves at the first wrong bit, where a generated text does not change until another token wins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from firstfault.bisect.probes import answers
from firstfault.bisect.probes.probe import Output, Tolerance
from firstfault.bisect.probes.tensors import alike, not_finite, saved_arrays

if TYPE_CHECKING:
    from firstfault.read.formats.saved_values import Arrays

LEAST, RIGHT = 1e-5, 0.05


@dataclass(frozen=True)
class Logprobs:
    """Change of the log-probabilities of given tokens."""

    path: str | None

    KIND: ClassVar[str] = "logprobs"
    UNIT: ClassVar[str] = "nats"
    SHARE: ClassVar[float] = 1 / 3

    def read(self, output: Output) -> Arrays:
        """The log-probabilities, from the file or the answers."""
        if self.path is None:
            return answers.logprobs(output)
        return saved_arrays(output)

    def wrong(self, seen: Arrays) -> str:
        """NaN or Inf in any of them."""
        return not_finite(seen)

    def effect(self, seen: Arrays, other: Arrays) -> float:
        """Root mean square over all tokens; infinite where they are not the same number of tokens."""
        import numpy

        if not alike(seen, other):
            return math.inf
        one, two = (
            numpy.concatenate([each[name].ravel().astype(numpy.float64) for name in other]) for each in (seen, other)
        )
        finite = numpy.isfinite(two)
        if not numpy.array_equal(numpy.isfinite(one), finite):
            return math.inf
        return float(numpy.sqrt(numpy.mean((one[finite] - two[finite]) ** 2))) if finite.any() else 0.0

    def tolerance(self, seen: Arrays) -> Tolerance:
        """Of log-probabilities that were computed in float32; give ``--tolerance`` for a model in bfloat16."""
        return Tolerance(LEAST, RIGHT)
