"""A tensor whose last element is further from its first than 32 bits can count.

## What it finds
An argument or result whose farthest element is 2³¹ or more elements away from the first, so that ``row * stride``
computed in 32 bits turns negative. It is passed over where earlier calls of the operator came back with one as large.

## Why it matters
Program and thread ids are 32-bit integers. The product overflows silently: the kernel reads and writes before the
tensor, which faults, or corrupts another one.

## Evidence
Extent times stride, and the first row beyond.

## Next step
Run the call with one row below and one above the threshold, or with the ids widened to 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.formats.values import elements
from firstfault.read.tensors import Labelled
from firstfault.record import schema

KIND = Kind.ILLEGAL_ACCESS
LIMIT = 2**31


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the span of each tensor."""
    results: list[Labelled] = suspect.call.outputs()
    for label, tensor in [*suspect.tensors, *results]:
        span = _span(tensor)
        known = suspect.largest(label)
        if span < LIMIT or (known is not None and known >= tensor.nbytes):
            continue
        text = f"{label} of shape {tensor.shape} spans {span} elements, beyond 2³¹"
        if tensor.stride and tensor.stride[0] > 0:
            row = -(-LIMIT // tensor.stride[0])
            text += f": {row} × {tensor.stride[0]} no longer fits 32 bits, so rows from {row} on are at wrong addresses"
        yield finding(
            __name__,
            suspect,
            Confidence.HIGH if suspect.witnessed or suspect.failed_on_device else Confidence.MEDIUM,
            [label],
            text,
            "run it with one row below and one above the threshold, or with 64-bit ids",
            verdict=Verdict.CAUSE if suspect.witnessed else Verdict.SUSPICIOUS,
            command=suspect.trace() or commands.record(level=10),
        )


def _span(tensor: schema.Tensor) -> int:
    """Elements from the first to the last."""
    if tensor.stride is None or len(tensor.stride) != len(tensor.shape) or 0 in tensor.shape:
        return elements(tensor.shape)
    return 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride, strict=True))
