"""A dtype unlike its neighbours' or unlike earlier calls of the same operator.

## What it finds
An argument whose dtype differs from that of every earlier call of the operator; and low-precision
floating-point tensors of different dtypes in one call.

## Why it matters
A kernel compiled for one element type reads another as garbage, or past its end.

## Evidence
The dtypes, and how many earlier calls had another.

## Next step
Look at the call that produced the argument.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding
from firstfault.diagnose.rules import Suspect, finding

HALVES = {"torch.float16", "torch.bfloat16"}


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare each tensor's dtype with earlier calls, and the half-precision ones with each other."""
    known = False
    for label, tensor in suspect.tensors:
        earlier = suspect.earlier(label)
        known = known or earlier is not None
        if earlier is not None and tensor.dtype not in earlier.dtypes:
            seen = ", ".join(sorted(earlier.dtypes))
            text = f"{label} is {tensor.dtype}; in {earlier.count} earlier calls it was {seen}"
            yield finding(__name__, suspect, Confidence.HIGH, [label], text, f"see which call produced {label}")
    halves = [(label, tensor.dtype) for label, tensor in suspect.tensors if tensor.dtype in HALVES]
    if not known and len({dtype for _, dtype in halves}) > 1:
        text = "half-precision arguments of two kinds: " + ", ".join(f"{label} {dtype}" for label, dtype in halves)
        labels = [label for label, _ in halves]
        yield finding(__name__, suspect, Confidence.MEDIUM, labels, text, "see which of them the kernel was built for")
