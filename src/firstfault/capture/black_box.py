"""Black-box mode's way of a call: what repeats is not described again.

A decode loop makes the same calls at every step. The first of them in each segment of the ring is described as
any call is, under a number for what it looks like; those after it are that number, their own, the time, and the
addresses of their tensors:

    {"type":"call","n":4242,"t":1764418858000000000,"tid":77,"layout":37,"ptrs":[140232,140800]}
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import torch

from firstfault.capture import describe, guard
from firstfault.capture.repeats import Layout, Repeats
from firstfault.capture.writers import RecordWriter
from firstfault.record import codec, schema
from firstfault.record.sinks.ring import Ring

_Where: TypeAlias = "tuple[str, ...]"


class _Known:
    """What one side of a call looks like: its number, and the segment that describes it."""

    __slots__ = ("number", "paths", "segment")

    def __init__(self, number: int, paths: list[tuple[describe.PathKey, ...]]) -> None:
        self.number = number
        self.paths = paths
        self.segment = 0


class BlackBox:
    """Writes calls and their returns to a ring, each look once a segment."""

    def __init__(self, writer: RecordWriter, ring: Ring) -> None:
        self._writer = writer
        self._ring = ring
        self._numbers = itertools.count(1)
        self._inputs: Repeats[_Known] = Repeats()
        self._outputs: Repeats[_Known] = Repeats()

    def call(self, record: schema.Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[describe.Watched]:
        """Write a call; what tells later which of its arguments were written to."""
        where = (record.op, record.target, record.site)
        values, names = (args, ()) if not kwargs else ((*args, *kwargs.values()), tuple(kwargs))
        layout = self._inputs.find(where, values, names)
        if layout is not None:
            record.op, record.target, record.site = "", "boundary", ""
            tensors = layout.tensors(values)
            if self._written(record, layout.text, tensors):
                return describe.watch(layout.text.paths, tensors)
            record.op, record.target, record.site = where
        walk = describe.Walk()
        with guard.unseen():
            record.args, record.kwargs = describe.describe_call(args, kwargs, walk)
            known = self._known(self._inputs, layout, (where, values, names), walk)
        self._describe(record, known)
        return describe.watched(walk.found)

    def returned(self, record: schema.Return, op: str, result: Any) -> None:
        """Write a return with its result."""
        where = (op,)
        values, names = (result, ("",)) if type(result) is tuple else ((result,), ())
        layout = self._outputs.find(where, values, names)
        if layout is not None and self._written(record, layout.text, layout.tensors(values)):
            return
        walk = describe.Walk()
        with guard.unseen():
            record.described, record.out = True, describe.describe(result, walk)
            known = self._known(self._outputs, layout, (where, values, names), walk)
        self._describe(record, known)

    def _written(self, record: schema.Call | schema.Return, known: _Known, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Write a record by the number of what it looks like, if this segment describes that and has room."""
        if known.segment != self._ring.index:
            return False
        record.layout = known.number
        record.ptrs = describe.addresses(tensors)
        line = codec.encode(record)
        if self._ring.fits(len(line)):
            self._writer.line(line)
            return True
        record.ptrs = None
        return False

    def _known(
        self,
        repeats: Repeats[_Known],
        layout: Layout[_Known] | None,
        looks: tuple[_Where, tuple[Any, ...], tuple[str, ...]],
        walk: describe.Walk,
    ) -> _Known | None:
        """What a call that is described now will be known as; None where it cannot be told from others."""
        if layout is not None:
            return layout.text
        if any(item.unreachable is not None for item in walk.found):
            return None
        known = _Known(next(self._numbers), [item.path for item in walk.found])
        return known if repeats.keep(*looks, known) else None

    def _describe(self, record: schema.Call | schema.Return, known: _Known | None) -> None:
        """Write a record with all that it looks like."""
        if known is None:
            self._writer.line(codec.encode(record))
            return
        record.layout, known.segment = known.number, 0
        if self._writer.line(codec.encode(record)):
            known.segment = self._ring.index
