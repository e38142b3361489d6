"""Values that look like memory which nobody has written.

## What it finds
An argument that no recorded call wrote, though where it lies was recorded, with values that no computation gives:
integers that reach from far below zero to far above it, floating-point numbers close to the largest there are.

## Why it matters
``torch.empty`` gives whatever was there. A kernel that skips rows (of padding, of an empty sequence, of the second of
two equal indices) leaves it so, and the next one takes it for data: garbage, NaN, or an index into nowhere.

## Evidence
The range of the values, and that no call is known to have written them.

## Next step
Fill the buffer with zeros where it is made, and see whether the fault goes away.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.contracts import is_integer
from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.tensors import largest_magnitude, whole
from firstfault.record import schema
from firstfault.record.text_log import number

KIND = Kind.NOT_A_NUMBER
FAR = 2**24
BEYOND = 1e18
"""Magnitude of floating-point garbage: random bits of an exponent reach it more often than not."""
LARGEST = 3e38
"""From here on a value is one of those that a dtype ends with, which are set and not found."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at arguments of unknown descent."""
    for label, tensor in suspect.tensors:
        known = suspect.earlier(label)
        if not tensor.ptr or suspect.call.links.get(label) or label in suspect.call.mutated or not _garbage(tensor):
            continue
        if known is not None and known.magnitude >= largest_magnitude(tensor) / 10:
            continue
        low, high = number(tensor.min or 0), number(tensor.max or 0)
        yield finding(
            __name__,
            suspect,
            Confidence.MEDIUM,
            [label],
            f"{label} reaches from {low} to {high}, as memory does that nobody wrote, and no recorded call wrote it",
            "fill the buffer with zeros where it is made, and see whether the fault goes away",
            command=suspect.trace(label),
        )


def _garbage(tensor: schema.Tensor) -> bool:
    if is_integer(tensor):
        low, high = whole(tensor.min), whole(tensor.max)
        return low is not None and high is not None and low < -FAR and high > FAR
    return "float" in tensor.dtype and BEYOND <= largest_magnitude(tensor) < LARGEST
