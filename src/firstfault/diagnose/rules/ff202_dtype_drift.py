"""A dtype unlike its neighbours' or unlike earlier calls of the same operator.

## What it finds
An argument whose dtype differs from that of every earlier call of the operator; and, with no earlier call to
compare with, half-precision tensors of two kinds in one call.

## Why it matters
A kernel compiled for one element type reads another as garbage, or past its end.

## Evidence
The dtypes, and how many earlier calls had another.

## Next step
Look at the call that produced the argument.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.MISMATCH
HALVES = {"torch.float16", "torch.bfloat16"}
ENOUGH_CALLS = 2


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare each tensor's dtype with earlier calls, or the half-precision ones with each other."""
    if suspect.alike is None:
        yield from _two_halves(suspect)
        return
    confidence = Confidence.HIGH if suspect.count >= ENOUGH_CALLS else Confidence.MEDIUM
    for label, tensor in suspect.tensors:
        known = suspect.earlier(label)
        if known is not None and tensor.dtype not in known.dtypes:
            text = f"{label} is {tensor.dtype}; {suspect.in_earlier_calls} it was {', '.join(sorted(known.dtypes))}"
            yield finding(
                __name__,
                suspect,
                confidence,
                [label],
                text,
                f"see which call produced {label}",
                origin=suspect.producer(label),
            )


def _two_halves(suspect: Suspect) -> Iterator[Finding]:
    halves = [(label, tensor.dtype) for label, tensor in suspect.tensors if tensor.dtype in HALVES]
    if len({dtype for _, dtype in halves}) > 1:
        text = "half-precision arguments of two kinds: " + ", ".join(f"{label} {dtype}" for label, dtype in halves)
        labels = [label for label, _ in halves]
        yield finding(__name__, suspect, Confidence.MEDIUM, labels, text, "see which of them the kernel was built for")
