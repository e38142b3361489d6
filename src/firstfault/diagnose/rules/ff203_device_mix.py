"""Tensors of one call on different devices.

## What it finds
A tensor on another device than the others of the call, or than in earlier calls. Single values on the CPU
are left out: torch takes them anywhere.

## Why it matters
A kernel given a host address faults with an illegal memory access.

## Evidence
The devices by argument.

## Next step
Look at the call that produced the argument.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding
from firstfault.diagnose.rules import Suspect, finding


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare the devices of a call's tensors with each other, unless earlier calls mixed them alike."""
    placed = [(label, tensor) for label, tensor in suspect.tensors if tensor.shape not in ((), (1,)) and tensor.device]
    if len({tensor.device for _, tensor in placed}) < 2:
        return
    earlier = {label: suspect.earlier(label) for label, _ in placed}
    if all((known := earlier[label]) is not None and tensor.device in known.devices for label, tensor in placed):
        return
    text = "arguments lie on different devices: " + ", ".join(f"{label} {tensor.device}" for label, tensor in placed)
    labels = [label for label, _ in placed]
    yield finding(__name__, suspect, Confidence.HIGH, labels, text, "see where each of them was made")
