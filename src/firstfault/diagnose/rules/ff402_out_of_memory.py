"""An allocation that did not fit, taken apart into the shapes that were seen.

## What it finds
An out-of-memory error of torch or CUDA. The bytes that it asked for are taken apart into extents of the call's tensors
and its whole numbers, times the size of an element: which of them were multiplied tells which tensor it was to be.

## Why it matters
The largest allocations come from a dimension that entered twice (scores of tokens by tokens, a tensor for each step
and then stacked), or a tensor meant per token that became one for the full sequence. More memory does not cure that.

## Evidence
The bytes of the message, the product that gives them, and the tensors that the extents are from.

## Next step
See which dimension entered more often than it should; where none did, lower batch, sequence length or cache size.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import combinations_with_replacement

from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.formats.errors_text import OUT_OF_MEMORY, Asked, asked_for
from firstfault.read.formats.values import element_size

KIND = Kind.OUT_OF_MEMORY
SHOWN = 3
"""Calls whose shapes are shown to be compared."""
MOST_EXTENTS = 16
MOST_ROUNDED = 8
"""Extents that are tried rounded up, which makes several of each."""
ALIGNMENTS = (8, 16, 32, 64, 128, 256)
"""What kernels pad rows and columns to."""
MOST_FACTORS = 4
SIZES = (4, 2, 8, 1)
"""Bytes of an element, the usual ones first."""
ALLOCATED_BY = 2 * 2**20
"""What the CUDA allocator rounds large sizes up to, in bytes."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Take the size in the call's exception apart."""
    message = suspect.said
    if OUT_OF_MEMORY.search(message) is None:
        return
    asked = asked_for(message)
    text = f"{suspect.call.op} (call {suspect.call.n}) ran out of memory"
    product = _product(suspect, asked) if asked else ""
    if asked:
        text += f": it asked for {asked.nbytes / 2**30:.3f} GiB"
    if product:
        text += f", which is {product}"
    yield finding(
        __name__,
        suspect,
        Confidence.HIGH,
        _largest(suspect),
        text,
        "see which dimension entered more often than it should; else lower batch, sequence length or cache size",
        verdict=Verdict.CAUSE if product else Verdict.SUSPICIOUS,
        command=suspect.trace() or _earlier_calls(suspect),
        evidence=[" ".join(message.split())[:400]],
    )


def _earlier_calls(suspect: Suspect) -> str:
    """The command that shows how large the arguments of earlier calls were; empty where there were none."""
    if not suspect.count and not suspect.other_uses:
        return ""
    return f"firstfault log {shlex.quote(suspect.source)} --op {shlex.quote(suspect.call.op)} --last {SHOWN}"


def _largest(suspect: Suspect) -> list[str]:
    """The argument that takes most memory."""
    label = max(suspect.tensors, key=lambda item: item[1].nbytes, default=None)
    return [label[0]] if label is not None else []


def _product(suspect: Suspect, asked: Asked) -> str:
    """The fewest extents and numbers of the call whose product is the size; empty where none is."""
    named = dict(reversed(list(_extents(suspect))))
    extents = sorted(named, reverse=True)[:MOST_EXTENTS]
    sizes = sorted(SIZES, key=lambda size: size not in {element_size(tensor.dtype) for _, tensor in suspect.tensors})
    for count in range(1, MOST_FACTORS + 1):
        for factors in combinations_with_replacement(extents, count):
            elements = 1
            for factor in factors:
                elements *= factor
            size = next((size for size in sizes if _is(elements * size, asked)), 0)
            if size:
                return " × ".join([*(f"{factor} ({named[factor]})" for factor in factors), f"{size} bytes"])
    return _rounded_product(suspect, asked, named, sizes)


def _rounded_product(suspect: Suspect, asked: Asked, named: dict[int, str], sizes: list[int]) -> str:
    """Two extents, rounded up as kernels pad them, whose product is the size."""
    padded: dict[int, str] = {}
    for extent in sorted(named, reverse=True)[:MOST_ROUNDED]:
        padded.setdefault(extent, f"{extent} ({named[extent]})")
        for to in ALIGNMENTS:
            up = -(-extent // to) * to
            padded.setdefault(up, f"{up} ({named[extent]}, {extent}, rounded up to a multiple of {to})")
    for left, right in combinations_with_replacement(padded, 2):
        size = next((size for size in sizes if _is(left * right * size, asked)), 0)
        if size:
            return " × ".join([padded[left], padded[right], f"{size} bytes"])
    return ""


def _is(size: int, asked: Asked) -> bool:
    """Whether an allocation of so many bytes is reported as the one that was asked for."""
    rounded = -(-size // ALLOCATED_BY) * ALLOCATED_BY
    return asked.nbytes in (size, rounded) or min(abs(rounded - asked.nbytes), abs(size - asked.nbytes)) < asked.within


def _extents(suspect: Suspect) -> Iterator[tuple[int, str]]:
    """Extents and whole numbers above 1, each with where it stands."""
    for label, tensor in suspect.tensors:
        for dim, extent in enumerate(tensor.shape):
            if extent > 1:
                yield extent, f"dimension {dim} of {label}"
    for label, value in suspect.call.inputs():
        if type(value) is int and value > 1:
            yield value, label
