"""Values implausibly large for an activation or weight.

## What it finds
A floating-point input whose largest magnitude is beyond a million, or beyond what its half-precision
neighbours can hold.

## Why it matters
Such values come from uninitialised memory, a wrong dtype or a missing scale, and become infinite a call or
two later.

## Evidence
Minimum and maximum.

## Next step
Follow the argument upstream to the call where the magnitude jumps.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding
from firstfault.diagnose.rules import Suspect, finding
from firstfault.record.text_log import number

IMPLAUSIBLE = 1e6


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at minimum and maximum of the floating-point tensors."""
    for label, tensor in suspect.tensors:
        if not ("float" in tensor.dtype or "complex" in tensor.dtype or not tensor.dtype):
            continue
        bounds = [bound for bound in (tensor.min, tensor.max) if isinstance(bound, (int, float))]
        if bounds and max(map(abs, bounds)) >= IMPLAUSIBLE:
            text = f"{label} reaches from {number(bounds[0])} to {number(bounds[-1])}"
            step = f"follow {label} upstream to the call where the magnitude jumps"
            yield finding(__name__, suspect, Confidence.MEDIUM, [label], text, step)
