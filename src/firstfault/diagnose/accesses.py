"""The address that a kernel failed at → the argument of the call that it is of, and how far outside.

    0x7f58c68611b0 of call 2  →  "as element 1,073,741,860 of arg[1], which has 128; arg[0] holds 1073741860"
    0x7f57cec00c04            →  "reaches 4 bytes past the end of topk_ids"

Addresses are those that were recorded, or those of a replay: the same call at other places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from firstfault.read.calls import Call
from firstfault.read.formats.complaint import Complaint
from firstfault.record import schema

FAR = 2**20
"""Bytes from an argument up to which an access is taken for one of it, with nothing else to go by."""


class Place(NamedTuple):
    """Where one tensor lay.

    Attributes:
        label: of the argument.
        begin, end: addresses of its first byte, and of the first behind its last element.
        itemsize: bytes of an element.
        allocation: address of the allocation that it is in; 0 where that is not known.
    """

    label: str
    begin: int
    end: int
    itemsize: int
    allocation: int = 0

    @property
    def elements(self) -> int:
        """How many elements there are from its begin to its end, gaps between them included."""
        return (self.end - self.begin) // self.itemsize


class Access(NamedTuple):
    """What an access turned out to be.

    Attributes:
        label: the argument.
        text: where it went, in words that follow "the access".
    """

    label: str
    text: str


def places(call: Call) -> list[Place]:
    """Where the tensors of a call lay as it was recorded."""
    return [place for label, tensor in call.given if (place := _place(label, tensor)) is not None]


def indices(call: Call) -> dict[int, str]:
    """The smallest and largest values of the integers that a call was given, and in which argument they are."""
    found: dict[int, str] = {}
    for label, tensor in call.given:
        for value in (tensor.min, tensor.max):
            if isinstance(value, int) and value not in (0, 1):
                found.setdefault(value, label)
    return found


def explained(told: Complaint, where: Sequence[Place], values: dict[int, str] | None = None) -> Access | None:
    """Which argument an access was of, and how far from it it went; None where that cannot be told.

    Args:
        told: what a tool said of the access.
        where: the arguments' places.
        values: numbers that the call was given, by which argument.
    """
    if not told.address:
        return None
    inside = [place for place in where if place.begin <= told.address < place.end]
    if inside and told.address + told.nbytes <= inside[0].end:
        place = inside[0]
        at = (told.address - place.begin) // place.itemsize
        return Access(place.label, f"is inside {place.label}, at its element {at:,}")
    by_index = _by_index(told, where, values or {})
    return by_index or _nearest(told, where)


def _by_index(told: Complaint, where: Iterable[Place], values: dict[int, str]) -> Access | None:
    """The argument whose element with a number that the call was given lies there, if that is outside of it."""
    for place in where:
        at, odd = divmod(told.address - place.begin, place.itemsize)
        holder = values.get(at)
        if odd == 0 and holder is not None and holder != place.label and not 0 <= at < place.elements:
            text = f"is to element {at:,} of {place.label}, which has {place.elements:,}; {holder} holds {at}"
            return Access(place.label, text)
    return None


def _nearest(told: Complaint, where: Sequence[Place]) -> Access | None:
    """The argument in the allocation that the tool says is nearest, or the nearest one if that is near enough."""
    same = [place for place in where if told.near and told.near in (place.begin, place.allocation)]
    place = min(same or where, key=lambda place: _distance(told.address, place), default=None)
    if place is None or not (same or _distance(told.address, place) <= FAR):
        return None
    if told.address < place.begin:
        text = f"begins {_bytes(place.begin - told.address)} before the start of {place.label}"
    else:
        text = f"reaches {_bytes(told.address + told.nbytes - place.end)} past the end of {place.label}"
    return Access(place.label, text)


def _distance(address: int, place: Place) -> int:
    return max(place.begin - address, address - place.end, 0)


def _bytes(count: int) -> str:
    return f"{count:,} {'byte' if count == 1 else 'bytes'}"


def _place(label: str, tensor: schema.Tensor) -> Place | None:
    """Where a tensor of a record lay; None for one that has no address, or no strides."""
    count = 1
    for extent in tensor.shape:
        count *= extent
    if not tensor.ptr or tensor.stride is None or count <= 0 or tensor.nbytes <= 0:
        return None
    itemsize = tensor.nbytes // count
    reach = 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride, strict=False))
    return Place(label, tensor.ptr, tensor.ptr + reach * itemsize, max(1, itemsize), tensor.storage)
