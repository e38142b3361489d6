"""The statistics page: what the device itself writes down of the values of each tensor that a call was given or gave.

    entry 17  call 9 inputs tensor 0, 8192 float values    -3.9 … 4.1, mean 0.0021, no NaN, no infinity

A page is a ring of entries in a file of shared memory that the process maps and registers with the driver. The
host writes which tensor an entry stands for and enqueues the reading of it; the device writes the results, and
last of all the entry's token. An entry is complete once both have the same token, which any process can tell,
before the owner's death and after it.

Before its entries are used again, half of the ring at a time, they are appended to a file in the recording, which
so is a page with any number of entries.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

from firstfault.record.plain import plain_number
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
TOKEN_OFFSET = 40
"""Where in a result its token is."""

FLOATING, INTEGER, UNSIGNED_64 = range(3)
"""How the results of a tensor's type are to be understood."""
INPUTS, OUTPUTS = "inputs", "outputs"
_SIDES = (INPUTS, OUTPUTS)

_HEADER = struct.Struct("<8sIIQQ")
_FOLDER_OFFSET = 64
_ENTRY = struct.Struct("<QQQQIBB")
_RESULTS = (struct.Struct("<dddqq"), struct.Struct("<qqdqq"), struct.Struct("<qqdqq"))
_TOKEN = struct.Struct("<Q")
_WORD = 8


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


@dataclass(frozen=True)
class Entry:
    """One tensor of one call that there is nothing more to come of.

    Attributes:
        index: which of the tensors of that side, from 0.
        statistics: None where the program had freed the tensor before the replay of a graph that was to read it: the
            host then writes the token itself, and that no values are read.
    """

    token: int
    call: int
    side: str
    index: int
    statistics: Statistics | None


@dataclass(frozen=True)
class Page:
    """A whole page; its entries by token."""

    pid: int
    started: int
    """When the owner opened it, in nanoseconds since the epoch."""

    folder: str
    entries: dict[int, Entry]


def header(pid: int, started: int, folder: str) -> bytes:
    """The first bytes of a page."""
    fixed = _HEADER.pack(MAGIC, ENTRIES, ENTRY_BYTES, pid, started).ljust(_FOLDER_OFFSET, b"\0")
    return fixed + folder.encode()[: HEADER_BYTES - _FOLDER_OFFSET - 1] + b"\0"


def entry_offset(slot: int) -> int:
    """Where an entry lies in the page, in bytes."""
    return HEADER_BYTES + slot * ENTRY_BYTES


def entry(token: int, call: int, side: str, index: int, values: Values) -> bytes:
    """What the host writes into an entry: which tensor it stands for."""
    count, times = min(values.numel, 2**64 - 1), min(values.times, 2**64 - 1)
    return _ENTRY.pack(token, call, count, times, index, _SIDES.index(side), values.number)


def write_entry(page: memoryview, slot: int, token: int, call: int, side: str, index: int, values: Values) -> None:
    """Say which tensor an entry stands for from now on."""
    at = entry_offset(slot)
    page[at : at + _ENTRY.size] = entry(token, call, side, index, values)


def entry_token(page: memoryview, slot: int) -> int:
    """The token that the host has written into an entry; 0 for one that was never used."""
    token: int = _TOKEN.unpack_from(page, entry_offset(slot))[0]
    return token


def read_result(page: memoryview | bytes, offset: int, values: Values) -> Statistics:
    """The statistics that the device has written at ``offset``.

    A result is five words and a token: both bounds over what is not NaN (float64, or int64, which for unsigned 64-bit
    values is 2**63 less), the sum as float64, and of floats how many are not NaN and how many are infinite.
    """
    number, numel, times = values
    low, high, total, known, infinite = _RESULTS[number].unpack_from(page, offset)
    mean = total / numel
    if number != FLOATING:
        moved = 2**63 if number == UNSIGNED_64 else 0
        return Statistics(low + moved, high + moved, mean)
    if known == numel and not infinite and math.isfinite(mean):
        return Statistics(low, high, mean, 0, 0)
    nan_count = numel - known
    if nan_count:
        mean = math.nan
    if not known:
        low = high = math.nan
    return Statistics(plain_number(low), plain_number(high), plain_number(mean), nan_count * times, infinite * times)


def read_token(page: memoryview, offset: int) -> int:
    """The token of the result at ``offset``: it is written last."""
    token: int = _TOKEN.unpack_from(page, offset + TOKEN_OFFSET)[0]
    return token


def complete(page: memoryview, first: int, last: int) -> bool:
    """Whether the device has got to all of the entries from ``first`` to before ``last``."""
    words = page[entry_offset(first) : entry_offset(last)].cast("Q")
    step = ENTRY_BYTES // _WORD
    return words[::step].tolist() == words[(RESULT_OFFSET + TOKEN_OFFSET) // _WORD :: step].tolist()


def write_result(
    page: memoryview, offset: int, number: int, result: tuple[float, float, float, int, int], token: int
) -> None:
    """Write at ``offset`` what a device would write; for tests, and drivers that are no device."""
    _RESULTS[number].pack_into(page, offset, *result)
    _TOKEN.pack_into(page, offset + TOKEN_OFFSET, token)


def parse(data: bytes) -> Page:
    """Read a page, or a file of more entries than one has; what is incomplete, damaged or cut off is left out.

    Raises:
        NotAPage: it is no page of this version.
    """
    if len(data) < _HEADER.size or data[:8] != MAGIC:
        raise NotAPage("not a statistics page of this version")
    _, _, entry_bytes, pid, started = _HEADER.unpack_from(data)
    if entry_bytes != ENTRY_BYTES:
        raise NotAPage("not a statistics page of this version")
    folder = data[_FOLDER_OFFSET:HEADER_BYTES].split(b"\0", 1)[0].decode(errors="replace")
    return Page(pid, started, folder, parse_entries(data[HEADER_BYTES:]))


def parse_entries(data: bytes) -> dict[int, Entry]:
    """The complete entries that ``data`` holds one after the other, by token."""
    found = (_parsed(data, offset) for offset in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES))
    return {each.token: each for each in found if each is not None}


def _parsed(data: bytes, offset: int) -> Entry | None:
    token, call, numel, times, index, side, number = _ENTRY.unpack_from(data, offset)
    at = offset + RESULT_OFFSET
    if token == 0 or token != _TOKEN.unpack_from(data, at + TOKEN_OFFSET)[0]:
        return None
    values = Values(number, numel, times)
    if not _plausible(data, at, side, values):
        return None
    return Entry(token, call, _SIDES[side], index, read_result(data, at, values) if numel else None)


def _plausible(data: bytes, at: int, side: int, values: Values) -> bool:
    """Whether an entry can have been written by us."""
    number, numel, times = values
    if side >= len(_SIDES) or number > UNSIGNED_64 or times == 0:
        return False
    if numel == 0:
        return True
    *_, known, infinite = _RESULTS[number].unpack_from(data, at)
    return number != FLOATING or (0 <= known <= numel and 0 <= infinite <= numel)
