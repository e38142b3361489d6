"""Calls and returns that leave out what one before them had too → whole ones.

{"type":"call","n":4242,"layout":37,"ptrs":[140232]}  →  Call(n=4242, op="RMSNorm.forward", args=[Tensor(…)])
{"type":"call","n":4243,"layout":38,"storages":[140232],"versions":[7]}  →  the same, with nothing lost
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from firstfault.read.events import Problems
from firstfault.read.formats.values import elements
from firstfault.read.tensors import replaced
from firstfault.record import codec, schema
from firstfault.record.shapes import is_contiguous, usual_strides

NOT_THERE = "[unavailable: not in the statistics page]"
UNKNOWN_OP = "(an operator that the recording no longer names)"

Looked = TypeVar("Looked", schema.Call, schema.Return)


class Layouts:
    """What each number of one process stands for."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._calls: dict[int, schema.Call] = {}
        self._returns: dict[int, schema.Return] = {}

    def filled(self, records: Iterable[codec.Record]) -> Iterator[codec.Record]:
        """The records, each with all that it had."""
        for record in records:
            if isinstance(record, schema.Header):  # each segment describes by itself what it refers to
                self._calls.clear()
                self._returns.clear()
            if isinstance(record, schema.Call) and record.layout:
                self._fill_call(record)
            elif isinstance(record, schema.Return) and record.layout:
                self._fill_return(record)
            yield record

    def _fill_call(self, call: schema.Call) -> None:
        like = self._like(self._calls, call)
        if _is_described(call):
            return
        fill, call.token = _filler(call), 0  # of a tensor, from here on
        if like is None:
            call.op = UNKNOWN_OP
            return
        call.op, call.target, call.site = like.op, like.target, like.site
        call.args = [fill(value) for value in like.args or ()]
        call.kwargs = {name: fill(value) for name, value in (like.kwargs or {}).items()}

    def _fill_return(self, returned: schema.Return) -> None:
        like = self._like(self._returns, returned)
        if _is_described(returned):
            return
        fill, returned.token = _filler(returned), 0
        if like is not None:
            returned.described = True
            returned.out = fill(like.out)

    def _like(self, known: dict[int, Looked], record: Looked) -> Looked | None:
        """The one that describes what ``record`` looks like, which may be itself."""
        if _is_described(record):
            known[record.layout] = _copy(record)
        elif record.layout not in known:
            self._problems.add("a call's description is no longer in the recording")
        return known.get(record.layout)


def _copy(record: Looked) -> Looked:
    """The same, whose tensors stay as they are: the statistics of this call are not those of another."""
    if isinstance(record, schema.Return):
        return msgspec.structs.replace(record, out=replaced(record.out, msgspec.structs.replace))
    args = [replaced(value, msgspec.structs.replace) for value in record.args or ()]
    kwargs = {name: replaced(value, msgspec.structs.replace) for name, value in (record.kwargs or {}).items()}
    return msgspec.structs.replace(record, args=args, kwargs=kwargs)


def _is_described(record: schema.Call | schema.Return) -> bool:
    return record.ptrs is None and record.storages is None


def _filler(record: schema.Call | schema.Return) -> Callable[[schema.Value], schema.Value]:
    """What gives the values of a call, one after the other, from those that its description has in their place."""
    if record.storages is not None:
        return _Whole(record, record.storages).filled
    return _Moved(record, record.ptrs or []).filled


class _Shapes:
    """The sizes and strides of the tensors of a call, which are to be given in their order."""

    def __init__(self, record: schema.Call | schema.Return) -> None:
        self._indices = itertools.count()
        self._shapes = dict(record.shapes)
        self._strides = dict(record.strides)

    def set(self, tensor: schema.Tensor) -> None:
        """Give the next tensor, which has those of its description, its own."""
        index = next(self._indices)
        shape, strides = (_told(extents.get(index), tensor.shape) for extents in (self._shapes, self._strides))
        if shape is None and strides is None:
            return
        itemsize = _itemsize(tensor)
        if shape is not None:
            tensor.shape, tensor.stride = shape, usual_strides(shape)
            tensor.nbytes = min(elements(shape) * itemsize, schema.MOST_WORD)
        if strides is not None:
            tensor.stride = strides
        tensor.contiguous = is_contiguous(tensor.shape, tensor.stride or ())


def _told(extents: tuple[int, ...] | None, described: tuple[int, ...]) -> tuple[int, ...] | None:
    """What is told of a tensor with as many dimensions as it was described with; None for what no tensor has."""
    if extents is None or len(extents) != len(described) or any(extent < 0 for extent in extents):
        return None
    return extents


def _itemsize(tensor: schema.Tensor) -> int:
    return tensor.nbytes // max(1, elements(tensor.shape))


class _Moved:
    """The values of a call of a ring, whose tensors lie elsewhere; values are to be given in their order."""

    def __init__(self, record: schema.Call | schema.Return, ptrs: list[int]) -> None:
        self._ptrs = iter(ptrs)
        self._shapes = _Shapes(record)

    def filled(self, value: schema.Value) -> schema.Value:
        """A value as the call had it; where its tensors lie in a storage and their versions are not kept."""
        if isinstance(value, schema.Tensor):
            moved = msgspec.structs.replace(value, ptr=next(self._ptrs, 0), offset=0, storage=0, version=None)
            self._shapes.set(moved)
            return moved
        if isinstance(value, schema.Sequence):
            return msgspec.structs.replace(value, items=[self.filled(item) for item in value.items])
        return value


class _Whole:
    """The values of a call of which nothing is lost; values are to be given in their order."""

    def __init__(self, record: schema.Call | schema.Return, storages: list[int]) -> None:
        self._storages = iter(storages)
        self._offsets = iter(record.offsets or ())
        self._versions = iter(record.versions)
        self._shapes = _Shapes(record)
        self._scalars = dict(record.scalars)
        self._tokens = iter(itertools.count(record.token) if record.token else ())
        self._met = 0
        """How many plain values came before."""

    def filled(self, value: schema.Value) -> schema.Value:
        """A value as the call had it, from that of the description."""
        if isinstance(value, schema.Tensor):
            return self._tensor(value)
        if isinstance(value, schema.Sequence):
            return msgspec.structs.replace(value, items=[self.filled(item) for item in value.items])
        if isinstance(value, schema.Mapping):
            return msgspec.structs.replace(value, values=[self.filled(item) for item in value.values])
        if not (value is None or isinstance(value, (bool, int, float, str))):
            return value
        place = self._met
        self._met += 1
        return self._scalars.get(place, value)

    def _tensor(self, value: schema.Tensor) -> schema.Tensor:
        storage, offset = next(self._storages, 0), next(self._offsets, 0)
        version = next(self._versions, None) if value.version is not None else None
        itemsize = _itemsize(value)
        moved = msgspec.structs.replace(
            value,
            ptr=storage + offset * itemsize if storage else 0,
            offset=offset,
            storage=storage,
            version=version,
        )
        self._shapes.set(moved)
        if value.token or value.min is not None:  # read by the device, or on the host, of the call that is described
            moved.token, moved.statistics = next(self._tokens, 0), value.statistics or NOT_THERE
            moved.min = moved.max = moved.mean = moved.nan_count = moved.inf_count = None
        return moved
