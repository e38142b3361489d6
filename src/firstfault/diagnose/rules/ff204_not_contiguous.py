"""A tensor that is not contiguous.

## What it finds
An argument that is not contiguous although it was in every earlier call of the operator; with nothing to
compare with, any that is not.

## Why it matters
A kernel that takes dense rows for granted reads a strided tensor wrongly, without an error.

## Evidence
Shape and stride.

## Next step
Call ``.contiguous()`` before the kernel and see whether the fault goes away.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.MISMATCH


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look for tensors that are not contiguous and were before."""
    for label, tensor in suspect.tensors:
        known = suspect.earlier(label)
        if tensor.contiguous or (known is not None and not known.always_contiguous):
            continue
        text = f"{label} of shape {tensor.shape} is not contiguous"
        if tensor.stride is not None:
            text += f", its stride is {tensor.stride}"
        if known is not None:
            text += f"; {suspect.in_earlier_calls} it was"
        confidence = Confidence.LOW if known is None else Confidence.MEDIUM
        step = f"pass {label}.contiguous() and see whether the fault goes away"
        yield finding(__name__, suspect, confidence, [label], text, step, origin=suspect.producer(label))
