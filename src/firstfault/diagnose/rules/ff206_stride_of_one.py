"""A dimension of size one with a stride that is not the usual one.

## What it finds
Where the call complains of layout: a tensor that counts as contiguous although a dimension of size one has another
stride than a dense tensor's would have, as slices of padded tensors do.

## Why it matters
``contiguous()`` gives such a tensor back as it is, for no element lies elsewhere because of it. A kernel or descriptor
that checks strides strictly, or multiplies by them, refuses or misreads it.

## Evidence
Shape and stride, and the stride that a dense tensor has.

## Next step
Make a new tensor of it, by ``clone(memory_format=torch.contiguous_format)`` or an empty one and ``copy_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.record import schema
from firstfault.record.shapes import usual_strides

KIND = Kind.MISMATCH
COMPLAINT = re.compile(r"contiguous|stride|layout|tensor ?map", re.IGNORECASE)


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look for dimensions of size one, if the call complains: most kernels do not look at them."""
    if COMPLAINT.search(suspect.said) is None:
        return
    for label, tensor in suspect.tensors:
        usual = usual_strides(tensor.shape)
        if not tensor.contiguous or tensor.stride is None or 0 in tensor.shape or not _odd(tensor, usual):
            continue
        text = f"{label} of shape {tensor.shape} has stride {tensor.stride}, and a dense one has {usual}"
        step = f"pass {label}.clone(memory_format=torch.contiguous_format), which contiguous() does not make"
        yield finding(__name__, suspect, Confidence.HIGH, [label], text, step, origin=suspect.producer(label))


def _odd(tensor: schema.Tensor, usual: tuple[int, ...]) -> bool:
    stride = tensor.stride or ()
    pairs = zip(tensor.shape, stride, usual, strict=False)
    return len(stride) == len(usual) and any(extent == 1 and step != dense for extent, step, dense in pairs)
