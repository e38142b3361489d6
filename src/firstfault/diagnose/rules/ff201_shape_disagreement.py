"""A dimension unlike its neighbours' or unlike earlier calls of the same operator.

## What it finds
Two tensors of one call with the same leading dimensions whose last dimension differs, such as a query of
``(1, 8, 8, 256)`` beside a key of ``(1, 8, 4, 64)``; and a dimension that was the same in every earlier
call of the operator and is another now.

## Why it matters
Kernels take head, hidden and cache dimensions from one argument and index the others by them. A mismatch
comes from the projection's layout, the packing of heads or the cache's format, not from the kernel that
faults on it.

## Evidence
The shapes, and how many earlier calls agreed on another extent.

## Next step
Look at the call that produced the argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from firstfault.diagnose.finding import Confidence, Finding
from firstfault.diagnose.rules import Suspect, finding
from firstfault.record import schema

ENOUGH_CALLS = 2
"""Earlier calls that must agree before another extent is remarkable."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare each tensor with those beside it, and with earlier calls."""
    for label, tensor in suspect.tensors:
        yield from _unlike_earlier(suspect, label, tensor)
    for (left, first), (right, second) in combinations(suspect.tensors, 2):
        if _neighbours(first, second) and not _usual(suspect, left, first, right, second):
            yield finding(
                __name__,
                suspect,
                Confidence.MEDIUM if len(first.shape) > 2 else Confidence.LOW,
                [left, right],
                f"the last dimension of {right} is {second.shape[-1]} and that of {left} is {first.shape[-1]}; "
                f"their shapes are {second.shape} and {first.shape}",
                f"see which call produced {right}, and with which head or hidden dimension",
            )


def _unlike_earlier(suspect: Suspect, label: str, tensor: schema.Tensor) -> Iterator[Finding]:
    earlier = suspect.earlier(label)
    if earlier is None or earlier.count < ENOUGH_CALLS or earlier.dims is None:
        return
    if len(earlier.dims) != len(tensor.shape):
        text = (
            f"{label} has {len(tensor.shape)} dimensions; in {earlier.count} earlier calls it had {len(earlier.dims)}"
        )
        yield finding(__name__, suspect, Confidence.HIGH, [label], text, f"see which call produced {label}")
        return
    for index, (usual, extent) in enumerate(zip(earlier.dims, tensor.shape, strict=True)):
        if usual is not None and usual != extent:
            # The first dimension is the number of tokens or rows: it varies in normal service.
            confidence = Confidence.LOW if index == 0 and len(tensor.shape) > 1 else Confidence.HIGH
            text = f"dimension {index} of {label} is {extent}; in all {earlier.count} earlier calls it was {usual}"
            yield finding(__name__, suspect, confidence, [label], text, f"see which call produced {label}")


def _neighbours(first: schema.Tensor, second: schema.Tensor) -> bool:
    """Same kind of data, same leading dimensions (but for the heads), another last dimension."""
    if len(first.shape) != len(second.shape) or len(first.shape) < 2 or first.dtype != second.dtype:
        return False
    leading = max(1, len(first.shape) - 2)
    return first.shape[:leading] == second.shape[:leading] and first.shape[-1] != second.shape[-1]


def _usual(suspect: Suspect, left: str, first: schema.Tensor, right: str, second: schema.Tensor) -> bool:
    """Whether earlier calls came back with these last dimensions."""
    return all(
        earlier is not None and earlier.dims is not None and earlier.dims[-1:] in ([tensor.shape[-1]], [None])
        for earlier, tensor in ((suspect.earlier(left), first), (suspect.earlier(right), second))
    )
