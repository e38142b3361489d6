"""A tensor implausibly large, by itself or next to earlier calls.

## What it finds
An input of 64 GiB or more, or one 64 times as large as any in earlier calls of the operator. Expanded tensors
count as what they take in memory.

## Why it matters
A tensor meant per token or per frame that became one for the full sequence or image is the usual way into
an out-of-memory error.

## Evidence
Shape and bytes.

## Next step
See which dimension grew: batch, sequence length, frames or resolution.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.formats.values import element_size
from firstfault.record import schema

KIND = Kind.OUT_OF_MEMORY
GIANT = 64 * 2**30
JUMP = 64
WORTH_A_JUMP = 2**28
"""Bytes below which a tensor that grew is not worth a word."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the bytes of each tensor, and at what they were before."""
    for label, tensor in suspect.tensors:
        known = suspect.largest(label)
        size = _in_memory(tensor)
        grew = known is not None and size >= max(JUMP * known, WORTH_A_JUMP)
        usual = known is not None and size <= known
        if usual or (size < GIANT and not grew):
            continue
        text = f"{label} of shape {tensor.shape} takes {size / 2**30:.1f} GiB"
        if known is not None:
            text += f"; {suspect.in_earlier_calls} it took {known / 2**30:.3f} GiB at most"
        # From one token to a full prefill is a large step too.
        confidence = Confidence.HIGH if size >= GIANT else Confidence.MEDIUM
        step = "see which dimension grew: batch, sequence length, frames or resolution"
        yield finding(__name__, suspect, confidence, [label], text, step)


def _in_memory(tensor: schema.Tensor) -> int:
    """Bytes from the first element to the last, which for an expanded tensor are fewer than it has elements."""
    if tensor.stride is None or 0 in tensor.shape or len(tensor.stride) != len(tensor.shape):
        return tensor.nbytes
    span = 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride, strict=True))
    return min(tensor.nbytes, max(span, 1) * element_size(tensor.dtype))
