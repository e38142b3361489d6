"""NaN or infinity among the inputs.

## What it finds
An input with NaN or infinite values, known from level 5 on. It weighs less where earlier calls of the operator
came back with such values in the same place, as with padding that nobody reads; and where all of them are
minus infinity, which is how masks are made.

## Why it matters
The bad value existed before this call: the call that shows it, or faults on it, is not the one that made it.

## Evidence
The counts.

## Next step
Follow the argument upstream to the first call whose inputs are finite and whose output is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding
from firstfault.diagnose.rules import Suspect, finding
from firstfault.record import schema


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the counts, and at a mean that is not a number."""
    for label, tensor in suspect.tensors:
        bad = _bad(tensor)
        if not bad:
            continue
        known = suspect.earlier(label)
        text = f"{label} of shape {tensor.shape} holds {bad} before the call"
        confidence = Confidence.LOW if _masked(tensor) else Confidence.HIGH
        if known is not None and known.not_finite:
            text += f"; so it did in {known.not_finite} of {suspect.count} earlier calls that came back"
            confidence = Confidence.LOW
        step = f"follow {label} upstream to the first call whose inputs are finite and whose output is not"
        yield finding(__name__, suspect, confidence, [label], text, step)


def _bad(tensor: schema.Tensor) -> str:
    counted = ((tensor.nan_count, "NaN"), (tensor.inf_count, "Inf"))
    parts = [f"{count} {name}" for count, name in counted if count]
    if not parts and tensor.mean == "nan":
        parts = ["NaN"]
    return " and ".join(parts)


def _masked(tensor: schema.Tensor) -> bool:
    """Whether every bad value is minus infinity."""
    return not tensor.nan_count and tensor.min == "-inf" and tensor.mean == "-inf"
