"""A dimension unlike its neighbours' or unlike earlier calls of the same operator.

## What it finds
A dimension that was the same in every earlier call of the operator and is another now; two dimensions that
were equal in every earlier call, such as the tokens of two arguments, and are no longer; another number of
dimensions; those that the call itself complains of; and, with no earlier call to compare with, two tensors with
the same leading dimensions whose last dimension differs, such as a query of ``(1, 8, 8, 256)`` beside a key of
``(1, 8, 4, 64)``.

The number of tokens, rows or images varies in normal service: leading dimensions that change together are
passed over.

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

import re
from collections.abc import Iterator
from itertools import combinations

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read import earlier
from firstfault.read.formats.errors_text import SHAPES
from firstfault.read.formats.values import elements
from firstfault.read.tensors import Labelled
from firstfault.record import schema

KIND = Kind.MISMATCH
ENOUGH_CALLS = 2
"""Earlier calls that must agree before another extent is remarkable."""
MANY_CALLS = 5
"""Earlier calls from which on their agreement weighs heavily."""
HEADS = 3
"""Dimensions from which on the last is the size of a head or feature, rather than a matrix's columns."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare each tensor with earlier calls, and with those beside it where there were none."""
    yield from _complained_of(suspect)
    if suspect.alike is None:
        yield from _other_ranks(suspect)
        yield from _neighbours(suspect)
    elif suspect.count >= ENOUGH_CALLS:
        yield from _broken_ties(suspect, suspect.alike)
        yield from _other_extents(suspect, suspect.alike)
    else:
        yield from _neighbours(suspect)


def _complained_of(suspect: Suspect) -> Iterator[Finding]:
    """The tensors with an extent that stands in what the call says of shapes."""
    message = suspect.call.message.partition("\n")[0]
    if not SHAPES.search(message):
        return
    numbers = {int(number) for number in re.findall(r"\d{1,18}", message)} - {0, 1}
    named = [item for item in suspect.tensors if numbers & {*item[1].shape, elements(item[1].shape)}]
    if not named:
        return
    unusual = [label for label, tensor in named if _is_unusual(suspect, label, tensor)]
    doubtful = unusual if len(unusual) == 1 else [label for label, _ in named]
    made = [origin for label in doubtful if (origin := suspect.producer(label)) is not None]
    text = "the call complains of shapes: " + ", ".join(f"{label} is {tensor.shape}" for label, tensor in named)
    labels = [label for label, _ in named]
    step = f"see which call produced {' and '.join(labels)}"
    origin = made[0] if len(made) == 1 else None  # of several nobody knows which is wrong
    yield finding(__name__, suspect, Confidence.MEDIUM, labels, text, step, origin=origin)


def _is_unusual(suspect: Suspect, label: str, tensor: schema.Tensor) -> bool:
    """Whether an argument has an extent that is not the one which it had in all earlier calls."""
    known = suspect.earlier(label)
    dims = known.dims if known is not None and suspect.count >= ENOUGH_CALLS else ()
    return any(usual not in (None, extent) for usual, extent in zip(dims, tensor.shape, strict=False))


def _other_ranks(suspect: Suspect) -> Iterator[Finding]:
    """An argument with another number of dimensions, where the operator had but one use."""
    if len(suspect.other_uses) != 1 or suspect.other_uses[0].count < ENOUGH_CALLS:
        return
    usual = suspect.other_uses[0]
    odd = [item for item in suspect.tensors if _has_other_rank(usual, *item)]
    for label, tensor in odd:
        text = (
            f"{label} has {len(tensor.shape)} dimensions, {tensor.shape}; "
            f"in all {usual.count} earlier calls it had {len(usual.places[label].dims)}"
        )
        if (other := _swapped_with(usual, label, odd)) is not None:
            text += f", and {other} had {len(tensor.shape)}: they may have changed places"
        yield _finding(suspect, Confidence.HIGH, [label], text)


def _has_other_rank(usual: earlier.Variant, label: str, tensor: schema.Tensor) -> bool:
    known = usual.places.get(label)
    return known is not None and len(known.dims) != len(tensor.shape)


def _swapped_with(usual: earlier.Variant, label: str, odd: list[Labelled]) -> str | None:
    """The other one of two arguments, each of which has as many dimensions as the other had."""
    if len(odd) != 2:
        return None
    (first, one), (second, other) = odd
    ranks = len(usual.places[first].dims), len(usual.places[second].dims)
    if (len(other.shape), len(one.shape)) != ranks:
        return None
    return second if label == first else first


def _broken_ties(suspect: Suspect, alike: earlier.Variant) -> Iterator[Finding]:
    """Dimensions that were equal in every earlier call and are not now."""
    extents = _extents(suspect)
    rows = {(label, 0) for label, tensor in suspect.tensors if _has_rows(tensor)}
    groups: dict[int, list[earlier.Position]] = {}
    for position in extents:
        if (tie := alike.ties.get(position)) is not None:
            groups.setdefault(id(tie), []).append(position)
    for positions in groups.values():
        tie = alike.ties[positions[0]]
        # That two extents are equal may be chance, unless they once changed together, or both count rows.
        tied = positions if tie.varied else [position for position in positions if position in rows]
        odd = next((position for position in tied[1:] if extents[position] != extents[tied[0]]), None)
        if odd is None:
            continue
        first = tied[0]
        text = (
            f"dimension {odd[1]} of {odd[0]} is {extents[odd]} and dimension {first[1]} of {first[0]} is "
            f"{extents[first]}; {suspect.in_earlier_calls} they were equal"
        )
        confidence = Confidence.HIGH if tie.varied else Confidence.MEDIUM
        yield _finding(suspect, confidence, list(dict.fromkeys((first[0], odd[0]))), text)


def _other_extents(suspect: Suspect, alike: earlier.Variant) -> Iterator[Finding]:
    """Dimensions that had one extent in all earlier calls and have another."""
    for label, tensor in suspect.tensors:
        known = alike.places.get(label)
        for dim, (usual, extent) in enumerate(zip(known.dims, tensor.shape, strict=False) if known else ()):
            if usual is None or usual == extent or dim == 0:
                continue
            text = f"dimension {dim} of {label} is {extent}; {suspect.in_earlier_calls} it was {usual}"
            confidence = Confidence.HIGH if suspect.count >= MANY_CALLS else Confidence.MEDIUM
            yield _finding(suspect, confidence if _is_feature(tensor, dim) else Confidence.LOW, [label], text)


def _neighbours(suspect: Suspect) -> Iterator[Finding]:
    """Same kind of data, same leading dimensions (but for the heads), another last dimension."""
    for (left, first), (right, second) in combinations(suspect.tensors[: earlier.MOST_TENSORS], 2):
        if not _alike(first, second) or _came_together(suspect, (left, first), (right, second)):
            continue
        text = (
            f"the last dimension of {right} is {second.shape[-1]} and that of {left} is {first.shape[-1]}; "
            f"their shapes are {second.shape} and {first.shape}"
        )
        headed = len(first.shape) >= HEADS or -1 in first.shape
        step = f"see which call produced {right}, and with which head or hidden dimension"
        confidence = Confidence.MEDIUM if headed else Confidence.LOW
        yield finding(__name__, suspect, confidence, [left, right], text, step)


def _alike(first: schema.Tensor, second: schema.Tensor) -> bool:
    if len(first.shape) != len(second.shape) or len(first.shape) < 2 or first.dtype != second.dtype:
        return False
    leading = max(1, len(first.shape) - 2)
    same_leading = first.shape[:leading] == second.shape[:leading]
    # One column (a scale or a weight of each row) is not a feature dimension.
    return same_leading and first.shape[-1] != second.shape[-1] and 1 not in (first.shape[-1], second.shape[-1])


def _came_together(suspect: Suspect, first: Labelled, second: Labelled) -> bool:
    """Whether an earlier call that came back had the same last dimensions in these places."""
    if suspect.alike is None:
        return False
    places = list(suspect.alike.places)
    wanted = [(places.index(label), tensor.shape[-1]) for label, tensor in (first, second) if label in places]
    return len(wanted) == 2 and any(all(dims[at] == last for at, last in wanted) for dims in suspect.alike.last_dims)


def _has_rows(tensor: schema.Tensor) -> bool:
    """Whether the first dimension counts tokens or the like: not so for the vector that is a weight."""
    return len(tensor.shape) > 1 or not _is_floating(tensor)


def _is_feature(tensor: schema.Tensor, dim: int) -> bool:
    """Whether a dimension is a head or hidden size; in indices and masks the last is a length, which varies."""
    return dim == len(tensor.shape) - 1 and _is_floating(tensor)


def _is_floating(tensor: schema.Tensor) -> bool:
    return "float" in tensor.dtype or not tensor.dtype


def _extents(suspect: Suspect) -> dict[earlier.Position, int]:
    return {(label, dim): extent for label, tensor in suspect.tensors for dim, extent in enumerate(tensor.shape)}


def _finding(suspect: Suspect, confidence: Confidence, labels: list[str], text: str) -> Finding:
    step = f"see which call produced {' and '.join(labels)}"
    origin = suspect.producer(labels[-1])
    written = next(filter(suspect.call.links.get, labels), labels[0])
    return finding(__name__, suspect, confidence, labels, text, *suspect.follow(written, step), origin=origin)
