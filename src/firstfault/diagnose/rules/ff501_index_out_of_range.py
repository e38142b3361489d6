"""An index beyond what it indexes.

## What it finds
An argument of integers whose largest value is not below the extent that it indexes, or whose smallest is negative
without being a mark for padding. What it indexes follows from the operator's contract (top-k ids the experts, token
ids the vocabulary, slots the cache), from the program's own error message, or from earlier calls, in all of which
the values stayed below an extent that they now exceed. Without any of these, values are named that are larger than
everything in the call that could be indexed.

## Why it matters
Kernels trust their indices. One that is too large reads or writes foreign memory: an illegal memory access if that
is not mapped, silent corruption if it is. A negative one wraps.

## Evidence
The value, the bound, where the bound follows from, and the call that wrote the value.

## Next step
Follow the argument to the call that made the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from firstfault.diagnose import contracts
from firstfault.diagnose.contracts import Bound, Use, is_integer
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.lineage import Ending, Origin
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.calls import Call
from firstfault.read.formats.values import elements
from firstfault.read.tensors import whole
from firstfault.record import schema

KIND = Kind.ILLEGAL_ACCESS
ENOUGH_CALLS = 2
"""Earlier calls whose bound is taken for one."""
HUGE = 2**24
"""Values from here on number nothing that a kernel commonly indexes."""
FAR_BEYOND = 1000
"""How many times larger than in all earlier calls a value is that cannot be a count of the same things."""
ADDRESS = 2**40
"""Larger ones may be addresses, hashes or times."""

COMPLAINT = re.compile(
    r"index(?: (?P<value>-?\d+))? (?:is )?out of (?:range|bounds)(?: for dimension \d+ with size (?P<size>\d+))?"
    r"|indices should be either on|srcIndex < srcSelectDimSize|Assertion `[^`]*(?:index|idx|ids|cur_target)[^`]*`"
    r"|Target (?P<target>-?\d+) is out of bounds|Class values must be (?:smaller than num_classes|non-negative)"
    r"|(?:ids?|index|indices|positions?|slots?|tokens?|experts?|blocks?|pages?)\b.{0,40}"
    r"(?:out of (?:range|bounds|vocab\w*)|exceeds?|too large|(?:must|should) be (?:less|smaller|below|in))",
    re.IGNORECASE,
)
"""What torch says of an index: on the host, and in the assertions of its kernels."""


class _Broken(NamedTuple):
    """A value and the bound that it breaks."""

    label: str
    value: int
    confidence: Confidence
    text: str


def check(suspect: Suspect) -> Iterator[Finding]:
    """Hold each argument of integers against what it indexes, as far as that can be told."""
    broken = _by_contract(suspect) or _by_complaint(suspect) or _by_earlier_calls(suspect) or _by_size(suspect)
    for found in broken:
        origin = suspect.origin(found.label, partial(holds, found.value))
        if not origin.found and origin.left is not None:
            origin = _stale(origin, origin.left)
        yield finding(
            __name__,
            suspect,
            found.confidence,
            [found.label],
            found.text,
            *suspect.follow(found.label, f"follow {found.label} to the call that made {found.value}", origin),
            verdict=Verdict.OUTSIDE if found.confidence is Confidence.HIGH else Verdict.SUSPICIOUS,
            rules_out=f"{suspect.call.op} computing a wrong address by itself: it was given the index",
            origin=origin,
        )


def _stale(origin: Origin, left: Call) -> Origin:
    """A call that wrote to the tensor and left the value in it from before stands for the one that made it."""
    return replace(origin, ending=Ending.LEFT, n=left.n, op=left.op, call=left)


def holds(value: int, tensor: schema.Tensor) -> bool | None:
    """Whether a tensor of integers has the value as its smallest or largest."""
    if tensor.max is None:
        return None if is_integer(tensor) else False
    return is_integer(tensor) and value in (tensor.min, tensor.max)


def _indices(suspect: Suspect) -> Iterator[tuple[str, int, int]]:
    """The arguments that may hold indices, with the smallest and the largest value of each."""
    for label, tensor in suspect.tensors:
        low, high = whole(tensor.min), whole(tensor.max)
        known = suspect.earlier(label)
        usual = known is None or tensor.dtype in known.dtypes  # else that is what is wrong with it
        if usual and is_integer(tensor) and low is not None and high is not None:
            yield label, low, high


def _by_contract(suspect: Suspect) -> list[_Broken]:
    return [broken for use in contracts.uses(suspect.call) for broken in _breaches(use)]


def _exceeds_a_table(suspect: Suspect, label: str, value: int) -> bool:
    """Whether a value is no row of some other argument, nor below a number that may be how many there are.

    An assertion of the device may be of a call before this one.
    """
    limits = [tensor.shape[0] for other, tensor in suspect.tensors if other != label and len(tensor.shape) > 1]
    limits += [number for _, number in suspect.call.inputs() if type(number) is int and number > 1]
    return value < 0 or any(value >= limit for limit in limits)


def breaks_contract(call: Call) -> bool:
    """Whether a call was given an index beyond what its operator is known to index."""
    return any(True for use in contracts.uses(call) for _ in _breaches(use))


def _breaches(use: Use) -> Iterator[_Broken]:
    value = use.outside(use.tensor)
    if value is None:
        return
    if value >= 0:
        text = f"{use.label} holds {use.what} up to {value}, beyond {use.bound.limit}, {use.bound.of}"
    else:
        text = f"{use.label} holds {use.what} down to {value}, which wraps or lies before the start"
    yield _Broken(use.label, value, Confidence.HIGH, text)


def _by_complaint(suspect: Suspect) -> list[_Broken]:
    """What the exception says of an index, and the argument that holds it."""
    complaint = COMPLAINT.search(suspect.said)
    if complaint is None:
        return []
    said = complaint["value"] or complaint["target"]
    size = f", and the size is {complaint['size']}" if complaint["size"] else ""
    found: list[_Broken] = []
    for label, low, high in _indices(suspect):
        value = int(said) if said else low if low < 0 else high
        sure = said is not None or suspect.call.exception.endswith("IndexError")
        if low <= value <= high and (sure or _exceeds_a_table(suspect, label, value)):
            text = f"{label} holds {value}{size}: {complaint.group()}"
            found.append(_Broken(label, value, Confidence.HIGH, text))
    return found


def _by_earlier_calls(suspect: Suspect) -> list[_Broken]:
    """Values that stayed below the extents around them in all earlier calls, and exceed all of these now."""
    found: list[_Broken] = []
    for label, _, high in _indices(suspect) if suspect.count >= ENOUGH_CALLS else ():
        usual = suspect.usual(label, high)
        bound = _largest_bound(suspect, label)
        if bound is not None and 0 < usual < bound.limit <= high:
            text = (
                f"{label} reaches {high}, beyond {bound.of}, {bound.limit}; "
                f"{suspect.in_earlier_calls} it stayed within {usual:.0f}"
            )
            found.append(_Broken(label, high, Confidence.HIGH if high >= HUGE else Confidence.MEDIUM, text))
    return found


def _largest_bound(suspect: Suspect, label: str) -> Bound | None:
    """The largest extent of another argument that was the same in all earlier calls."""
    bounds = [
        Bound(extent, f"dimension {dim} of {other}")
        for other, tensor in suspect.tensors
        for dim, extent in enumerate(tensor.shape)
        if other != label and _was_there(suspect, other, dim, extent)
    ]
    return max(bounds, default=None)


def _was_there(suspect: Suspect, label: str, dim: int, extent: int) -> bool:
    known = suspect.earlier(label)
    return known is not None and known.dims[dim] == extent


def _by_size(suspect: Suspect) -> list[_Broken]:
    """Values that are larger than everything in the call that they could index."""
    found: list[_Broken] = []
    for label, low, high in _indices(suspect):
        largest = max((elements(tensor.shape) for other, tensor in suspect.tensors if other != label), default=0)
        if largest and max(HUGE, largest) <= high < ADDRESS:
            text = f"{label} reaches {high}, and the largest other argument has {largest} elements"
            usual = suspect.usual(label, high) >= high
            if usual:
                text += f"; so it did {suspect.in_earlier_calls} that came back"
            found.append(_Broken(label, high, Confidence.LOW if usual else Confidence.MEDIUM, text))
        elif largest and -ADDRESS < low <= -HUGE:
            text = f"{label} goes down to {low}: as an index it lies far before the start"
            found.append(_Broken(label, low, Confidence.MEDIUM, text))
        elif not largest and (unlike := _unlike_earlier(suspect, label, low, high)) is not None:
            found.append(unlike)
    return found


def _unlike_earlier(suspect: Suspect, label: str, low: int, high: int) -> _Broken | None:
    """A value thousands of times those of earlier calls: a count or offset that others are made of."""
    value = low if abs(low) > abs(high) else high
    usual = suspect.usual(label, abs(value))
    if not 0 < usual * FAR_BEYOND <= abs(value) < ADDRESS or abs(value) < HUGE:
        return None
    text = f"{label} holds {value}; in earlier calls it stayed within {usual:.0f}"
    return _Broken(label, value, Confidence.MEDIUM, text)
