"""Tensors of one call on different devices.

## What it finds
A tensor on another device than in earlier calls of the operator; and, with no earlier call to compare with,
one on another device than the others of the call. Single values on the CPU are left out, torch takes them
anywhere; integers on the CPU weigh less, since many kernels plan their launch from such.

## Why it matters
A kernel given a host address, or one of another GPU, faults with an illegal memory access.

## Evidence
The devices by argument.

## Next step
Look at the call that produced the argument.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.record import schema

KIND = Kind.MISMATCH


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare the devices of a call's tensors with earlier calls, or with each other."""
    placed = [(label, tensor) for label, tensor in suspect.tensors if _has_place(tensor)]
    devices = {tensor.device for _, tensor in placed}
    if len(devices) < 2 or (suspect.alike is not None and not any(_moved(suspect, *item) for item in placed)):
        return
    text = "arguments lie on different devices: " + ", ".join(f"{label} {tensor.device}" for label, tensor in placed)
    integers_aside = {tensor.device for _, tensor in placed if not (tensor.device == "cpu" and "int" in tensor.dtype)}
    sure = suspect.alike is not None or len(integers_aside) > 1
    confidence = Confidence.HIGH if sure else Confidence.LOW
    labels = [label for label, _ in placed]
    yield finding(__name__, suspect, confidence, labels, text, "see where each of them was made")


def _has_place(tensor: schema.Tensor) -> bool:
    return bool(tensor.device) and tensor.device != "meta" and tensor.shape not in ((), (1,))


def _moved(suspect: Suspect, label: str, tensor: schema.Tensor) -> bool:
    known = suspect.earlier(label)
    return known is None or tensor.device not in known.devices
