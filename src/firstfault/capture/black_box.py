"""Black-box mode's way of a call: what repeats is not described again.

A decode loop makes the same calls at every step. The first of them in each segment of the ring is described as
any call is, under a number for what it looks like; those after it are that number, their own, the time, and the
addresses of their tensors:

    {"type":"call","n":4242,"t":1764418858000000000,"tid":77,"layout":37,"ptrs":[140232,140800]}

It is meant to stay on in production, so it does with few steps what ``Recorder`` and ``OpenCall`` do with many,
and does not watch for what a call changes in place without saying so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from firstfault.capture import compiled, describe, guard
from firstfault.capture.in_c import InC, labels
from firstfault.capture.open_call import OpenCall, Thread, parent_in
from firstfault.capture.repeats import Layout, Repeats, tells_all
from firstfault.capture.sites import site_of_caller
from firstfault.record import codec, schema
from firstfault.record.sinks.ring import Ring

if TYPE_CHECKING:
    from firstfault.capture.recorder import Recorder
    from firstfault.capture.writers import RecordWriter

_Where: TypeAlias = "tuple[str, str, str]"
"""Operator, target and site of a call."""

_Looks: TypeAlias = "tuple[Hashable, tuple[Any, ...], dict[str, Any]]"
"""What tells the looks of a call apart: operator and place, and the values by position and by keyword."""


class _Known:
    """What one side of a call looks like: its number, and the last segment that describes it."""

    __slots__ = ("number", "segment")

    def __init__(self, number: int) -> None:
        self.number = number
        self.segment = 0


class BlackBox(InC):
    """Writes calls and their returns to a ring, each look once a segment."""

    def __init__(self, recorder: Recorder, writer: RecordWriter, ring: Ring) -> None:
        super().__init__(recorder)
        self._writer = writer
        self._ring = ring
        self._numbers = itertools.count(1)
        self._inputs: Repeats[_Known] = Repeats(objects=True)
        self._outputs: Repeats[_Known] = Repeats(objects=True)
        self._make_known: Callable[[int], _Known] = _Known
        if compiled.crossing is not None:
            self._make_known = compiled.crossing.Known
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
                self.box.keep_output(call.op, result, compared, layout.text)
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
        self.box.keep_inputs(*where, layout.names, values, compared, layout.text)

    def _write_short(
        self, record: schema.Call | schema.Return, layout: Layout[_Known], tensors: tuple[torch.Tensor, ...]
    ) -> bool:
        """Write a record by the number of what it looks like, if this segment describes that and has room."""
        known = layout.text
        record.layout = known.number
        record.ptrs = describe.addresses(tensors)
        if self._ring.append(codec.encode(record), known.segment):
            return True
        record.ptrs = None
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
        known = known or self._new(repeats, looks, walk)
        if known is None:
            self._writer.line(codec.encode(record))
            return
        record.layout, segment = known.number, self._ring.index
        written = self._writer.line(codec.encode(record))
        known.segment = segment if written and segment == self._ring.index else 0  # else it may be in either

    def _new(self, repeats: Repeats[_Known], looks: _Looks, walk: describe.Walk) -> _Known | None:
        if any(item.unreachable is not None for item in walk.found) or not tells_all(*looks[1:], walk.found):
            return None
        known = self._make_known(next(self._numbers))
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
