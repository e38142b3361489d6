"""A tensor whose rows or start do not lie on multiples of 16 bytes.

## What it finds
Where the call complains of a misaligned address: an argument of a floating-point type whose first element, or whose
step from row to row, is no multiple of 16 bytes. Where every argument is aligned, the misaligned access is made by the
kernel itself, in shared memory or at an offset that it computes from the sizes.

## Why it matters
Kernels load 16 bytes at a time. A slice of columns, or an odd hidden size, gives them addresses that fault.

## Evidence
Address and step in bytes.

## Next step
Pass a copy that is dense, and see whether the fault goes away; else sweep the size and relate it to the failures.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.formats.values import element_size
from firstfault.record import schema

KIND = Kind.MISMATCH
VECTOR = 16
"""Bytes of the widest load."""
COMPLAINT = "misaligned address"


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the addresses and steps of the call's tensors, if it complains: most kernels take any."""
    if COMPLAINT not in suspect.said:
        return
    odd = [(label, why) for label, tensor in suspect.tensors if (why := _odd(tensor))]
    for label, why in odd:
        text = f"{label} is not aligned to {VECTOR} bytes: {why}"
        step = f"pass {label}.contiguous().clone() and see whether the fault goes away"
        yield finding(__name__, suspect, Confidence.HIGH, [label], text, step, origin=suspect.producer(label))
    if not odd and suspect.tensors:
        shapes = ", ".join(f"{label} {tensor.shape}" for label, tensor in suspect.tensors)
        yield finding(
            __name__,
            suspect,
            Confidence.MEDIUM,
            [],
            f"{suspect.call.op} (call {suspect.call.n}) made a misaligned access though no argument is known to be "
            f"misaligned: an offset that it computes itself depends on {shapes}",
            "call it with sizes around these, and relate the failures to what it divides them by",
            verdict=Verdict.CAUSE if suspect.witnessed else Verdict.SUSPICIOUS,
            rules_out="the layout of its arguments",
        )


def _odd(tensor: schema.Tensor) -> str:
    """What of a tensor is not aligned; empty if all is."""
    if "float" not in tensor.dtype or len(tensor.shape) < 2 or min(tensor.shape) < 1:
        return ""
    if tensor.ptr % VECTOR:
        return f"it begins {tensor.ptr % VECTOR} bytes after such an address"
    if tensor.stride is None or len(tensor.stride) != len(tensor.shape):
        return ""
    size = element_size(tensor.dtype)
    steps = zip(tensor.stride[:-1], tensor.shape[:-1], strict=True)
    pitch = next((step * size for step, extent in steps if extent > 1 and step * size % VECTOR), 0)
    return f"its rows are {pitch} bytes apart" if pitch else ""
