"""Calls and returns of a ring that leave out what one before them had too → whole ones.

{"type":"call","n":4242,"layout":37,"ptrs":[140232]}  →  Call(n=4242, op="RMSNorm.forward", args=[Tensor(…)])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from firstfault.read.events import Problems
from firstfault.record import codec, schema

UNKNOWN_OP = "(an operator that the ring no longer names)"

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
            if isinstance(record, schema.Call) and record.layout:
                self._fill_call(record)
            elif isinstance(record, schema.Return) and record.layout:
                self._fill_return(record)
            yield record

    def _fill_call(self, call: schema.Call) -> None:
        like = self._like(self._calls, call)
        if call.ptrs is None:
            return
        if like is None:
            call.op = UNKNOWN_OP
            return
        call.op, call.target, call.site = like.op, like.target, like.site
        ptrs = iter(call.ptrs)
        call.args = [_moved(value, ptrs) for value in like.args or ()]
        call.kwargs = {name: _moved(value, ptrs) for name, value in (like.kwargs or {}).items()}

    def _fill_return(self, returned: schema.Return) -> None:
        like = self._like(self._returns, returned)
        if returned.ptrs is not None and like is not None:
            returned.described = True
            returned.out = _moved(like.out, iter(returned.ptrs))

    def _like(self, known: dict[int, Looked], record: Looked) -> Looked | None:
        """The one that describes what ``record`` looks like, which may be itself."""
        if record.ptrs is None:
            known[record.layout] = msgspec.structs.replace(record)
        elif record.layout not in known:
            self._problems.add("a call's description is no longer in the ring")
        return known.get(record.layout)


def _moved(value: schema.Value, ptrs: Iterator[int]) -> schema.Value:
    """A value whose tensors lie at the next of ``ptrs``; their place in a storage and their version are not kept."""
    if isinstance(value, schema.Tensor):
        return msgspec.structs.replace(value, ptr=next(ptrs, 0), offset=0, storage=0, version=None)
    if isinstance(value, schema.Sequence):
        return msgspec.structs.replace(value, items=[_moved(item, ptrs) for item in value.items])
    return value
