"""Levels 3 and 5 to segment files in C: what a call looks like is described once, and later calls refer to that.

    {"type":"call","n":42,"t":1764418858000000000,"tid":77,"layout":7,"storages":[140232],"versions":[3],"scalars":[[2,17]]}

Nothing of a call is lost by that: where its tensors lie, how often they were written to, and every size and number that
is another than in the description are told with each. ``Recorder`` and ``OpenCall`` do what C cannot, and describe what
is new; what comes again gets a number with its second description, under which it is kept there. Values that the
device reads by itself are read of both (``by_device.py``); a call of which the host reads some is described each time.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from firstfault.capture import describe
from firstfault.capture.by_device import ByDevice
from firstfault.capture.deferred_stats import DeferredStatistics
from firstfault.capture.describe import Found
from firstfault.capture.in_c import InC
from firstfault.capture.open_call import Thread
from firstfault.record import codec, schema
from firstfault.record.sinks.segments import Segments

if TYPE_CHECKING:
    from firstfault.capture.recorder import Recorder
    from firstfault.capture.writers import RecordWriter


class Metadata(InC):
    """The calls of a recorder that describes them to segment files."""

    def __init__(self, recorder: Recorder, writer: RecordWriter, segments: Segments) -> None:
        super().__init__(recorder)
        self._writer = writer
        self._segments = segments
        self._numbers = itertools.count(1)
        self._by_device = ByDevice()
        self._make_box(appender=segments.appender, tells_all=True)

    def read_by(self, page: DeferredStatistics, *, waits: bool) -> None:
        """Have the device read by itself, and ``waits`` for it, from now on."""
        if self.box is not None:
            self._by_device.use(self.box, page, waits=waits)

    def stop_reading(self) -> None:
        """Have the device read nothing any more."""
        self._by_device.stop()

    def lane(self, device: int, stream: int) -> tuple[int, int, int] | None:
        """What readings on a stream need, for C."""
        return self._by_device.lane(device, stream)

    def call(self, record: schema.Call, args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Found]) -> None:
        """Write a call that is described, and have later ones refer to it."""
        layout = None
        if (tensors := _kept(found)) is not None and (readings := self._by_device.packed(found)) is not None:
            values, number = (*args, *kwargs.values()), next(self._numbers)
            place = (record.op, record.target, record.site)
            layout = self.box.keep_exact_inputs(*place, tuple(kwargs), values, number, tensors, *readings)
        self._write(record, layout)

    def returned(self, record: schema.Return, op: str, result: Any, found: list[Found]) -> None:
        """Write a return that is described, likewise."""
        layout = None
        if (tensors := _kept(found)) is not None and (readings := self._by_device.packed(found)) is not None:
            layout = self.box.keep_exact_output(op, result, next(self._numbers), tensors, *readings)
        self._write(record, layout)

    def end(self, op: str, thread: Thread, record: schema.Return, mutates: Collection[Any], result: Any) -> None:
        """Write the return of a call that C has begun, and that changed what lies at the paths ``mutates``."""
        walk = describe.Walk()
        with self.recorder.hidden():
            record.described, record.out = True, describe.describe(result, walk)
            self.recorder.read_result(walk.found, record.n, op)
        record.mutated = [describe.label(path) for path in dict.fromkeys(mutates)]
        self.recorder.write_return(record, op, result, walk.found)

    def rest(self, line: bytes, written: int) -> None:
        """Write what the system has not taken of a line: all of it, or what follows so many bytes."""
        self._writer.rest(line, written)

    def _write(self, record: schema.Call | schema.Return, layout: Any) -> None:
        if layout is None:
            self._writer.line(codec.encode(record))
            return
        record.layout, stretch = layout.number, self._segments.stretch
        written = self._writer.line(codec.encode(record))
        if written and stretch == self._segments.stretch:  # else it may be in another than is thought
            layout.stretch = stretch


def _kept(found: list[Found]) -> list[tuple[Any, ...]] | None:
    """What C keeps of the tensors of a description: each, and where it lies; None where one is not a plain one."""
    if not all(_is_plain(item) for item in found):
        return None
    return [
        (
            item.given,
            item.described.storage,
            item.described.offset,
            item.described.version,
            item.path,
            msgspec.json.encode(describe.label(item.path)) if item.path else b"",
        )
        for item in found
    ]


def _is_plain(item: Found) -> bool:
    """Whether all of a tensor's description follows from what C looks at, and from its version and place."""
    described = item.described
    return (
        item.unreachable is None
        and described.kind is None
        and described.missing is None
        and described.nbytes <= schema.MOST_WORD
        and not torch._is_functional_tensor(item.tensor)
    )
