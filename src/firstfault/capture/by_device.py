"""What the device reads by itself of calls that C writes (``crossing/readings.c``): how, and with what memory.

    {"type":"call","n":42,"t":1764418858000000000,"layout":7,"storages":[140232],"token":412}

The first tensor that is read has that token in the statistics page, those after it the next ones. Which those are,
the first call that looked so has told; how they are read follows from their layout, but for where they lie. Small
tensors on the host C reads itself.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from firstfault import settings
from firstfault.capture import deferred_stats, device_stats, stats
from firstfault.capture.deferred_stats import DeferredStatistics
from firstfault.capture.describe import Found
from firstfault.record.statistics_page import FLOATING, INTEGER

_READING = struct.Struct("<23q")
"""As ``Reading`` in ``readings.c``."""
_HOST = -1
_FOLLOWS = (0,) * 4
"""What C finds out of a contiguous tensor."""
_NO_REQUEST = (0,) * 12
_MOST_FIXED = 256
MOST_ON_HOST = 4096
"""Elements that C reads of a tensor on the host."""
_ON_HOST = {
    dtype: device_stats.KIND_OF[dtype]
    for dtype in (
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )
}
"""The types of those, and the kernel's numbers for them."""


class ByDevice:
    """The readings that C asks for, once there is a page for them."""

    def __init__(self) -> None:
        self._box: Any = None
        self._page: DeferredStatistics | None = None
        self._groups = 0

    def use(self, box: Any, page: DeferredStatistics, *, waits: bool) -> None:
        """Read by ``page``, which is held for as long as C writes there; ``waits`` for the device after each call."""
        self._box, self._page = box, page
        box.use_reader(**page.in_c(), waits=waits)

    def stop(self) -> None:
        """Read nothing any more: the page is about to be closed."""
        if self._box is not None:
            self._box.stop_reading()

    def lane(self, device: int, stream: int) -> tuple[int, int, int] | None:
        """Scratch memory for the readings on a stream, the kernel, and its shared memory; None where there is none.

        Raises:
            Unavailable, MarkersUnavailable: they cannot be had.
        """
        assert self._page is not None
        reader = self._page.reader
        lane = reader.lane((device, stream))
        if lane is None:
            return None
        kernel = reader.kernel(device, ())
        return lane.scratch, kernel.function, kernel.shared

    def packed(self, found: list[Found]) -> tuple[bytes, bytes] | None:
        """How the tensors of one side of a call are read, and which are not for their size.

        None where Python has to read one of them each time.
        """
        page, readings, fixed = self._page, b"", b""
        most = settings.current().statistics_max_bytes
        for index, item in enumerate(found):
            if item.described.token and page is not None:
                readings += _packed(index, item, page.reader, most)
            elif item.described.min is not None:
                if page is None or not is_quick(item):
                    return None
                readings += _packed_on_host(index, item.tensor, most)
            elif item.described.statistics == stats.too_large(most) and index < _MOST_FIXED:
                fixed += bytes((index,))
            elif item.described.statistics not in (None, stats.EMPTY):
                return None
        if page is not None and page.reader.groups != self._groups:
            self._groups = page.reader.groups
            self._box.forget_readers()
        return readings, fixed


def is_quick(item: Found) -> bool:
    """Whether C can read a tensor on the host, in no time."""
    tensor = item.tensor
    return (
        tensor.dtype in _ON_HOST
        and not deferred_stats.lies_there(tensor)
        and item.described.contiguous
        and tensor.device.type == "cpu"
        and not tensor.is_neg()
        and tensor.numel() <= MOST_ON_HOST
    )


def _packed(index: int, item: Found, reader: device_stats.Reader, most_bytes: int) -> bytes:
    tensor = item.tensor
    asked = reader.requests([tensor], tensor.get_device())[0]
    assert asked is not None
    address, plan = asked
    most_parts = min(reader.most_parts(tensor.get_device()), device_stats.MOST_PARTS)
    number, *values = plan.values
    reach = stats.reach(tensor, contiguous=item.described.contiguous)
    place = (index, deferred_stats.device_of(tensor), tensor.itemsize, most_bytes, most_parts)
    return _READING.pack(*place, number, address & 15, reach, *values, *plan.words)


def _packed_on_host(index: int, tensor: torch.Tensor, most_bytes: int) -> bytes:
    number = FLOATING if tensor.dtype.is_floating_point else INTEGER
    place = (index, _HOST, tensor.itemsize, min(MOST_ON_HOST * tensor.itemsize, most_bytes), 0)
    return _READING.pack(*place, number, *_FOLLOWS, _ON_HOST[tensor.dtype], *_NO_REQUEST)
