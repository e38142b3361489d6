"""The statistics page: what the device itself writes down of the values of each tensor that a call was given or gave.

    entry 17  call 9 inputs tensor 0, 8192 float values    -3.9 … 4.1, mean 0.0021, no NaN, no infinity

A page is a ring of entries in a file of shared memory that the process maps and registers with the driver. The
host writes which tensor an entry stands for and enqueues the reading of it; the device writes the results, and
last of all the entry's token. An entry is complete once both have the same token, which any process can tell,
before the owner's death and after it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

from firstfault.record.schema import Statistic

MAGIC = b"FFSTAT1\0"
HEADER_BYTES = 2048
ENTRY_BYTES = 128
"""Two cache lines: the host writes the first and the device the second."""
ENTRIES = 8192
"""Tensors under way at most; the host runs ahead by about a thousand kernels."""
PAGE_BYTES = HEADER_BYTES + ENTRIES * ENTRY_BYTES
RESULT_OFFSET = 64
"""Where in an entry the device writes."""

FLOATING, INTEGER, UNSIGNED_64 = range(3)
"""How the results of a tensor's type are to be understood."""
INPUTS, OUTPUTS = "inputs", "outputs"
_SIDES = (INPUTS, OUTPUTS)

_HEADER = struct.Struct("<8sIIQQ")
_FOLDER_OFFSET = 64
_ENTRY = struct.Struct("<QQQQIBB")
_RESULT = struct.Struct("<qqdqqQ")
_TOKEN = struct.Struct("<Q")
_TOKEN_OFFSET = _RESULT.size - _TOKEN.size
_ORDERED = 2**63 - 1
_KEY = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")


class NotAPage(ValueError):
    """Bytes that are no statistics page, or one of another version."""


class Statistics(NamedTuple):
    """What is known of the values of one tensor; the counts are None where its type has no NaN."""

    min: Statistic
    max: Statistic
    mean: Statistic
    nan_count: int | None = None
    inf_count: int | None = None


class Values(NamedTuple):
    """The values that a reading goes over.

    Attributes:
        number: ``FLOATING``, ``INTEGER`` or ``UNSIGNED_64``.
        numel: how many are read.
        times: how often each of them stands in the tensor, which may be an expanded one.
    """

    number: int
    numel: int
    times: int = 1


class Result(NamedTuple):
    """What the device writes of one tensor.

    Attributes:
        low, high: bounds over what is not NaN, as integers that order like the values (``key``).
        total: the sum.
        known: how many values are not NaN; of no meaning for integers, as ``infinite`` is.
        infinite: how many are infinite.
        token: of the entry.
    """

    low: int
    high: int
    total: float
    known: int
    infinite: int
    token: int


@dataclass(frozen=True)
class Entry:
    """One tensor of one call, completely read."""

    token: int
    call: int
    side: str
    index: int
    """Which of the tensors of that side, from 0."""

    statistics: Statistics


@dataclass(frozen=True)
class Page:
    """A whole page; its entries by token."""

    pid: int
    started: int
    """When the owner opened it, in nanoseconds since the epoch."""

    folder: str
    entries: dict[int, Entry]


def key(value: float) -> int:
    """An integer that orders like a float64: its bits, of a negative number all but the sign turned over."""
    bits: int = _KEY.unpack(_DOUBLE.pack(value))[0]
    return bits ^ _ORDERED if bits < 0 else bits


def value_of(ordered: int) -> float:
    """The float64 that ``key`` gave ``ordered`` for."""
    bits = ordered ^ _ORDERED if ordered < 0 else ordered
    found: float = _DOUBLE.unpack(_KEY.pack(bits))[0]
    return found


def understood(result: Result, values: Values) -> Statistics:
    """The statistics that a result stands for."""
    mean = result.total / values.numel
    if values.number == FLOATING:
        nan_count = values.numel - result.known
        if nan_count:
            mean = math.nan
        low, high = (value_of(result.low), value_of(result.high)) if result.known else (math.nan, math.nan)
        counts = nan_count * values.times, result.infinite * values.times
        return Statistics(named(low), named(high), named(mean), *counts)
    moved = 2**63 if values.number == UNSIGNED_64 else 0
    return Statistics(result.low + moved, result.high + moved, mean)


def named(value: float) -> Statistic:
    """JSON has no NaN or infinity: those travel by name."""
    return value if math.isfinite(value) else str(value)


def header(pid: int, started: int, folder: str) -> bytes:
    """The first bytes of a page."""
    fixed = _HEADER.pack(MAGIC, ENTRIES, ENTRY_BYTES, pid, started).ljust(_FOLDER_OFFSET, b"\0")
    return fixed + folder.encode()[: HEADER_BYTES - _FOLDER_OFFSET - 1] + b"\0"


def entry_offset(slot: int) -> int:
    """Where an entry lies in the page, in bytes."""
    return HEADER_BYTES + slot * ENTRY_BYTES


def write_entry(page: memoryview, slot: int, token: int, call: int, side: str, index: int, values: Values) -> None:
    """Say which tensor an entry stands for from now on."""
    count, times = min(values.numel, 2**64 - 1), min(values.times, 2**64 - 1)
    at = entry_offset(slot)
    _ENTRY.pack_into(page, at, token, call, count, times, index, _SIDES.index(side), values.number)


def read_result(page: memoryview, offset: int) -> Result:
    """What the device has written at ``offset``."""
    return Result(*_RESULT.unpack_from(page, offset))


def read_token(page: memoryview, offset: int) -> int:
    """The token of the result at ``offset``, by itself."""
    token: int = _TOKEN.unpack_from(page, offset + _TOKEN_OFFSET)[0]
    return token


def write_result(page: memoryview, offset: int, result: Result) -> None:
    """Write at ``offset`` what a device would write; for tests, and drivers that are no device."""
    _RESULT.pack_into(page, offset, *result)


def parse(data: bytes) -> Page:
    """Read a page; entries that are incomplete, damaged or cut off are left out.

    Raises:
        NotAPage: it is no page of this version.
    """
    if len(data) < _HEADER.size or data[:8] != MAGIC:
        raise NotAPage("not a statistics page of this version")
    _, entries, entry_bytes, pid, started = _HEADER.unpack_from(data)
    if entry_bytes != ENTRY_BYTES:
        raise NotAPage("not a statistics page of this version")
    whole = max(0, min(entries, ENTRIES, (len(data) - HEADER_BYTES) // ENTRY_BYTES))
    found = (_entry(data, entry_offset(slot)) for slot in range(whole))
    folder = data[_FOLDER_OFFSET:HEADER_BYTES].split(b"\0", 1)[0].decode(errors="replace")
    return Page(pid, started, folder, {entry.token: entry for entry in found if entry is not None})


def _entry(data: bytes, offset: int) -> Entry | None:
    token, call, count, times, index, side, number = _ENTRY.unpack_from(data, offset)
    result = Result(*_RESULT.unpack_from(data, offset + RESULT_OFFSET))
    if token == 0 or token != result.token or not _plausible(result, side, Values(number, count, times)):
        return None
    return Entry(token, call, _SIDES[side], index, understood(result, Values(number, count, times)))


def _plausible(result: Result, side: int, values: Values) -> bool:
    """Whether an entry can have been written by us."""
    if side >= len(_SIDES) or values.number > UNSIGNED_64 or values.numel == 0 or values.times == 0:
        return False
    return values.number != FLOATING or (
        0 <= result.known <= values.numel and 0 <= result.infinite <= result.known + values.numel
    )
