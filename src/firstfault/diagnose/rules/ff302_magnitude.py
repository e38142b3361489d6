"""Values implausibly large for an activation or weight.

## What it finds
A floating-point input whose largest magnitude is beyond a million; beyond what its half-precision neighbours
can hold; or a thousand times what it was in all earlier calls of the operator. A mask filled with the most
negative number of its dtype is left out, and so is what earlier calls had as large and came back.

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
from functools import partial

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.tensors import largest_magnitude
from firstfault.record import schema
from firstfault.record.text_log import number

KIND = Kind.NOT_A_NUMBER
IMPLAUSIBLE = 1e6
LARGEST_HALF = 65504.0
JUMP = 1e3
WORTH_A_JUMP = 1e3
"""Magnitude below which values that grew are not worth a word."""
MOST_NEGATIVE = {"torch.float32": -3.4e38, "torch.bfloat16": -3.38e38, "torch.float64": -1.79e308}
"""Close to the smallest number of a dtype, as ``torch.finfo`` gives it; that of half precision is plausible."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at minimum and maximum of the floating-point tensors."""
    halves = any(tensor.dtype == "torch.float16" for _, tensor in suspect.tensors)
    for label, tensor in suspect.tensors:
        size = largest_magnitude(tensor)
        if not _is_floating(tensor) or _masked(tensor):
            continue
        known = suspect.earlier(label)
        before = known.magnitude if known is not None else 0.0
        reason = _reason(size, before, beside_halves=halves and tensor.dtype != "torch.float16")
        if not reason:
            continue
        text = f"{label} reaches from {number(tensor.min or 0)} to {number(tensor.max or 0)}{reason}"
        step = suspect.follow(label, f"follow {label} upstream to the call where the magnitude jumps")
        origin = suspect.origin(label, partial(_as_large, size)) if suspect.call.links.get(label) else None
        yield finding(__name__, suspect, Confidence.MEDIUM, [label], text, *step, origin=origin)


def _as_large(size: float, tensor: schema.Tensor) -> bool | None:
    """Whether a tensor holds a magnitude close to one; None where it has no statistics."""
    return None if tensor.mean is None and _is_floating(tensor) else largest_magnitude(tensor) >= size / JUMP


def _reason(size: float, before: float, *, beside_halves: bool) -> str:
    """What is remarkable in a magnitude, as the end of a sentence; empty where nothing is."""
    if before > 0 and size < JUMP * before:
        return "" if size < IMPLAUSIBLE or before >= IMPLAUSIBLE / 10 else f"; before it stayed within {before:g}"
    if before > 0 and size >= WORTH_A_JUMP:
        return f"; in earlier calls it stayed within {before:g}"
    if size >= IMPLAUSIBLE:
        return ", more than activations or weights do"
    return ", more than the float16 tensors beside it can hold" if beside_halves and size > LARGEST_HALF else ""


def _is_floating(tensor: schema.Tensor) -> bool:
    return "float" in tensor.dtype or "complex" in tensor.dtype or not tensor.dtype


def _masked(tensor: schema.Tensor) -> bool:
    floor = MOST_NEGATIVE.get(tensor.dtype)
    low, high = tensor.min, tensor.max
    return (
        floor is not None and isinstance(low, float) and low <= floor and isinstance(high, (int, float)) and high <= 0
    )
