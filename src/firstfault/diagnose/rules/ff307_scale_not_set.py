"""A scale that was never set.

## What it finds
A single floating-point value, or an argument called a scale, that is the smallest or largest number of a dtype, or
zero throughout: what a scale is filled with until the real one is loaded.

## Why it matters
Two such values multiply to infinity, infinity times zero is NaN; dividing by a scale of zero is either. The matrix
product that shows it is innocent: another one gives the same on the same scales, unless it does not use them.

## Evidence
The value.

## Next step
See where the scale is loaded, and whether the call came before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.formats.values import elements
from firstfault.record import schema
from firstfault.record.text_log import number

KIND = Kind.NOT_A_NUMBER
ENDS = (3.4028e38, 3.3895e38, 65504.0, 57344.0, 1.797e308)
"""Largest numbers of single precision, bfloat16, half, float8_e5m2 and double."""
CLOSE = 1e-3


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at single values and at scales."""
    for label, tensor in suspect.tensors:
        named = "scale" in label.lower()
        single = elements(tensor.shape) == 1
        if "float" not in tensor.dtype or not (named or single) or not _sentinel(tensor, zero=named):
            continue
        yield finding(
            __name__,
            suspect,
            Confidence.HIGH,
            [label],
            f"{label} is {number(tensor.max or 0)}, which a scale is before it is set",
            f"see where {label} is loaded, and whether this call came before it",
            command=suspect.trace(label),
            rules_out=f"{suspect.call.op}: any other gives the same for such a scale",
            origin=suspect.producer(label),
        )


def _sentinel(tensor: schema.Tensor, *, zero: bool) -> bool:
    """Whether all values are one of the ends of a dtype, or zero where that is no value either."""
    low, high = tensor.min, tensor.max
    if not isinstance(low, (int, float)) or low != high:
        return False
    return (zero and low == 0) or any(abs(abs(low) - end) <= CLOSE * end for end in ENDS)
