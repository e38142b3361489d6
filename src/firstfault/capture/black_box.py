"""Black-box mode's way of a call: what repeats is not described again.

A decode loop makes the same calls at every step. The first of them in each segment of the ring is described as
any call is, under a number for what it looks like; those after it are that number, their own, the time, the
addresses of their tensors, and the sizes of those that have others:

    {"type":"call","n":4242,"t":1764418858000000000,"tid":77,"layout":37,"ptrs":[140232,140800],"shapes":[[0,[8,256]]]}

It is meant to stay on in production, so it does with few steps what ``Recorder`` and ``OpenCall`` do with many,
and does not watch for what a call changes in place without saying so.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Hashable
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from firstfault.capture import compiled, describe, guard
from firstfault.capture.in_c import InC, labels
from firstfault.capture.open_call import OpenCall, Thread, parent_in
from firstfault.capture.repeats import Layout, Repeats, all_told
from firstfault.capture.sites import site_of_caller
from firstfault.record import codec, schema
from firstfault.record.shapes import usual_strides
from firstfault.record.sinks.ring import Ring

if TYPE_CHECKING:
    from firstfault.capture.recorder import Recorder
    from firstfault.capture.writers import RecordWriter

_Where: TypeAlias = "tuple[str, str, str]"
"""Operator, target and site of a call."""

_Shape: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"
"""Sizes and strides."""
_Extents: TypeAlias = "list[tuple[int, tuple[int, ...]]]"
"""Of some tensors, by their place."""

_Looks: TypeAlias = "tuple[Hashable, tuple[Any, ...], dict[str, Any]]"
"""What tells the looks of a call apart: operator and place, and the values by position and by keyword."""


class _Known:
    """What one side of a call looks like: its number, and the last segment that describes it, with which shapes."""

    __slots__ = ("in_c", "number", "segment", "shapes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.segment = 0
        self.shapes: tuple[_Shape, ...] = ()
        self.in_c: Any = compiled.crossing.Known(number) if compiled.crossing is not None else None

    def describe(self, tensors: tuple[torch.Tensor, ...], segment: int) -> None:
        """A segment describes it with these tensors; 0 for none."""
        self.segment = 0  # nobody refers to it meanwhile
        self.shapes = tuple(map(_shape, tensors))
        if self.in_c is not None:
            self.in_c.describe(tensors, segment)
        self.segment = segment


def _shape(tensor: torch.Tensor) -> _Shape:
    return tuple(tensor.shape), tensor.stride()


def _others(described: tuple[_Shape, ...], tensors: tuple[torch.Tensor, ...]) -> tuple[_Extents, _Extents]:
    """The sizes of the tensors that have others than those described, and the strides that follow from neither."""
    shapes: _Extents = []
    strides: _Extents = []
    for index, (expected, found) in enumerate(zip(described, map(_shape, tensors), strict=True)):
        if found != expected:
            size, stride = found
            usual = expected[1]
            if size != expected[0]:
                shapes.append((index, size))
                usual = usual_strides(size)
            if stride != usual:
                strides.append((index, stride))
    return shapes, strides


class BlackBox(InC):
    """Writes calls and their returns to a ring, each look once a segment."""

    def __init__(self, recorder: Recorder, writer: RecordWriter, ring: Ring) -> None:
        super().__init__(recorder)
        self._writer = writer
        self._ring = ring
        self._numbers = itertools.count(1)
        self._inputs: Repeats[_Known] = Repeats(objects=True, sizes=True)
        self._outputs: Repeats[_Known] = Repeats(objects=True, sizes=True)
        self._describing = threading.Lock()
        """In a segment there is one description of a look: what is told of others is how they differ from that."""
        if compiled.crossing is not None:
            self._make_box(cursor=ring.cursor)

    def begin(
        self, thread: Thread, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], graph: int
    ) -> OpenCall:
        """Write that a call begins."""
        recorder, calls = self.recorder, thread.calls
        call = BlackBoxCall(self, recorder.numbers.next(), op, thread)
        where = (op, target, site_of_caller())
        record = schema.Call(call.n, time_ns(), "", "boundary", parent_in(calls), thread.tid)
        markers = recorder.markers or recorder.open_markers()
        if markers is not None:
            call.markers = markers
            record.device, record.stream, record.graph = markers.place(graph)
        calls.append(call)
        found = self._inputs.find(where, args, kwargs)
        if found is not None and self._write_short(record, *found):
            if self.box is not None:
                self._keep_inputs(where, args, kwargs, found[0])
        else:
            record.op, record.target, record.site = where
            walk = describe.Walk()
            with guard.unseen():
                record.args, record.kwargs = describe.describe_call(args, kwargs, walk)
                self._write_whole(record, self._inputs, found and found[0].text, (where, args, kwargs), walk)
        if markers is not None:
            markers.begin(record)
        return call

    def returned(self, call: BlackBoxCall, record: schema.Return, result: Any) -> None:
        """Write that a call came back with ``result``."""
        found = self._outputs.find(call.op, (result,), {})
        if found is not None and self._write_short(record, *found):
            if self.box is not None:
                layout = found[0]
                compared = self._outputs.compared(layout)
                self.box.keep_output(call.op, result, compared, layout.text.in_c)
        else:
            walk = describe.Walk()
            with guard.unseen():
                record.described, record.out = True, describe.describe(result, walk)
                self._write_whole(record, self._outputs, found and found[0].text, (call.op, (result,), {}), walk)

    def end(self, op: str, thread: Thread, record: schema.Return, mutates: Collection[int | str], result: Any) -> None:
        """Write the return of a call that C has begun, and whose result does not look like one before."""
        call = BlackBoxCall(self, record.n, op, thread)
        if mutates:
            record.mutated = labels(mutates)
        self.returned(call, record, result)

    def _keep_inputs(
        self, where: _Where, args: tuple[Any, ...], kwargs: dict[str, Any], layout: Layout[_Known]
    ) -> None:
        """Leave the next call that looks so to C."""
        values = (*args, *kwargs.values())
        compared = self._inputs.compared(layout)
        self.box.keep_inputs(*where, layout.names, values, compared, layout.text.in_c)

    def _write_short(
        self, record: schema.Call | schema.Return, layout: Layout[_Known], tensors: tuple[torch.Tensor, ...]
    ) -> bool:
        """Write a record by the number of what it looks like, if this segment describes that and has room."""
        known = layout.text
        segment = known.segment  # before the shapes are looked at: another thread may describe it anew in the next
        if not segment:
            return False
        record.layout = known.number
        record.ptrs = describe.addresses(tensors)
        record.shapes, record.strides = _others(known.shapes, tensors)
        if self._ring.append(codec.encode(record), segment):
            return True
        record.ptrs = None
        record.shapes, record.strides = [], []
        return False

    def _write_whole(
        self,
        record: schema.Call | schema.Return,
        repeats: Repeats[_Known],
        known: _Known | None,
        looks: _Looks,
        walk: describe.Walk,
    ) -> None:
        """Write a record with all that it looks like, under a number if that can be told from others."""
        tensors = None
        if not any(item.unreachable is not None for item in walk.found):
            tensors = all_told(*looks[1:], walk.found)
            known = known or (self._new(repeats, looks) if tensors is not None else None)
        if tensors is None or known is None:
            self._writer.line(codec.encode(record))
            return
        with self._describing:
            segment = self._ring.index
            if known.segment == segment:  # by another thread, and calls refer to that
                self._writer.line(codec.encode(record))
                return
            record.layout = known.number
            written = self._writer.line(codec.encode(record))
            # Else it may be in either.
            known.describe(tensors, segment if written and segment == self._ring.index else 0)

    def _new(self, repeats: Repeats[_Known], looks: _Looks) -> _Known | None:
        known = _Known(next(self._numbers))
        return known if repeats.keep(*looks, known) else None


class BlackBoxCall(OpenCall):
    """A call that a black box has written the begin of."""

    __slots__ = ("_box",)

    def __init__(self, box: BlackBox, n: int, op: str, thread: Thread) -> None:
        self._box = box
        self._recorder = box.recorder
        self._thread = thread
        self.n = n
        self.op = op
        self.dump = self.markers = self.replay = None
        self.mutates = ()

    def _returned(self, recorder: Recorder, result: Any) -> None:
        record = schema.Return(self.n, time_ns(), self._thread.tid)
        if self.markers is not None:
            self.markers.end(record)
        if self.mutates:
            record.mutated = labels(self.mutates)
        self._box.returned(self, record, result)
