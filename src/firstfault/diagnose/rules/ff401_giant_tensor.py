"""A tensor implausibly large, by itself or next to earlier calls.

## What it finds
An input of 64 GiB or more, or one 64 times as large as any in earlier calls of the operator.

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

from firstfault.diagnose.finding import Confidence, Finding
from firstfault.diagnose.rules import Suspect, finding

GIANT = 64 * 2**30
JUMP = 64
WORTH_A_JUMP = 2**28
"""Bytes below which a tensor that grew is not worth a word."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the bytes of each tensor, and at what they were before."""
    for label, tensor in suspect.tensors:
        earlier = suspect.earlier(label)
        grew = earlier is not None and tensor.nbytes >= max(JUMP * earlier.largest, WORTH_A_JUMP)
        if tensor.nbytes < GIANT and not grew:
            continue
        if earlier is not None and tensor.nbytes <= earlier.largest:
            continue
        text = f"{label} of shape {tensor.shape} takes {tensor.nbytes / 2**30:.1f} GiB"
        if earlier is not None:
            text += f"; the largest in {earlier.count} earlier calls took {earlier.largest / 2**30:.3f} GiB"
        step = "see which dimension grew: batch, sequence length, frames or resolution"
        yield finding(__name__, suspect, Confidence.HIGH, [label], text, step)
