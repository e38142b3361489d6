"""The marker page: how far the host has enqueued and how far the device has got, per stream.

    slot 0  device 0 stream 0x0    enqueued begin of call 100    reached end of call 36

A page is a file in shared memory that the process maps and registers with the driver. The host writes what
it enqueues, the device itself writes what it has completed, and any process may read both, before the
owner's death and after it.

A marker is one 32-bit word that names one side of one call: ``call * 2`` for its begin, plus 1 for its end,
modulo 2**32. 0 is no marker: a slot's device has reached nothing yet.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = b"FFPAGE1\0"
PAGE_BYTES = 16384
"""Size of the file: a header and ``SLOTS`` slots."""

_HEADER = struct.Struct("<8sIIQQQ")
_FOLDER_OFFSET = 64
_SLOT = struct.Struct("<iIQQI")
SLOT_BYTES = 64
"""A cache line each, so that the device's writes for two streams never meet."""

HEADER_BYTES = 2048
SLOTS = (PAGE_BYTES - HEADER_BYTES) // SLOT_BYTES
REACHED_OFFSET = 24
"""Where in a slot the device writes."""

ENQUEUED_OFFSET = 16
STREAM, GRAPH = 1, 2
_MASK = 2**32 - 1


class NotAPage(ValueError):
    """Bytes that are no marker page, or one of another version."""


@dataclass(frozen=True)
class Slot:
    """One stream of one device, or one captured graph.

    Attributes:
        device: the device's ordinal.
        kind: ``STREAM`` or ``GRAPH``.
        handle: the stream's handle, 0 for the default stream; or the graph's number.
        enqueued: the last marker that the host enqueued, not reduced; for a graph the number of replays.
        reached: the last marker that the device completed, modulo 2**32.
    """

    device: int
    kind: int
    handle: int
    enqueued: int
    reached: int

    @property
    def caught_up(self) -> bool:
        """Whether the device has completed all that the host enqueued."""
        return self.enqueued & _MASK == self.reached


@dataclass(frozen=True)
class Page:
    """A whole page."""

    pid: int
    started: int
    """When the owner opened it, in nanoseconds since the epoch."""

    folder: str
    """The folder of its process in the recording, where the page belongs once the process is gone."""

    slots: list[Slot]
    pid_namespace: int = 0
    """What tells the owner's pid namespace from others; 0 where that is not known."""


def begin_marker(call: int) -> int:
    """The marker of the begin of a call."""
    return call << 1


def end_marker(call: int) -> int:
    """The marker of the end of a call."""
    return (call << 1) | 1


def call_of(reached: int, enqueued: int) -> tuple[int, str]:
    """The call that a device's word stands for, and which side of it; the word may have wrapped around.

    Args:
        reached: the 32-bit word.
        enqueued: the last marker enqueued, not reduced: the one meant is the last at or before it.
    """
    marker = (enqueued & ~_MASK) | reached
    if marker > enqueued:
        marker -= _MASK + 1
    return marker >> 1, "end" if marker & 1 else "begin"


def header(pid: int, started: int, folder: str, slots: int, pid_namespace: int = 0) -> bytes:
    """The first bytes of a page with so many slots in use."""
    fixed = _HEADER.pack(MAGIC, SLOTS, slots, pid, started, pid_namespace).ljust(_FOLDER_OFFSET, b"\0")
    return fixed + folder.encode()[: HEADER_BYTES - _FOLDER_OFFSET - 1] + b"\0"


def slot(device: int, kind: int, handle: int) -> bytes:
    """A slot that neither side has written to."""
    return _SLOT.pack(device, kind, handle, 0, 0)


def slot_offset(index: int) -> int:
    """Where a slot lies in the page, in bytes."""
    return HEADER_BYTES + index * SLOT_BYTES


def parse(data: bytes) -> Page:
    """Read a page; one cut short gives the slots that are whole.

    Raises:
        NotAPage: it is no page of this version.
    """
    if len(data) < _HEADER.size or data[:8] != MAGIC:
        raise NotAPage("not a marker page of this version")
    _, _, used, pid, started, pid_namespace = _HEADER.unpack_from(data)
    whole = min(used, SLOTS, (len(data) - HEADER_BYTES) // SLOT_BYTES)
    slots = [_slot(data, slot_offset(index)) for index in range(max(whole, 0))]
    folder = data[_FOLDER_OFFSET:HEADER_BYTES].split(b"\0", 1)[0].decode(errors="replace")
    return Page(pid, started, folder, slots, pid_namespace)


def _slot(data: bytes, offset: int) -> Slot:
    device, kind, handle, enqueued, reached = _SLOT.unpack_from(data, offset)
    return Slot(device, kind, handle, enqueued, reached)
