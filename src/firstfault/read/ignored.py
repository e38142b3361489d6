"""Calls that gave the same although one of their arguments was another.

Ignored(call=<apply_penalty, call 9>, label="arg[2]", values=["1.0", "1.3", "2.5"], first=3)

Only of the last few results of an operator, and only where all values of the call were recorded: from level 5 on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from firstfault.read.formats.values import elements
from firstfault.read.tensors import Labelled
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.read.calls import Call

MOST_RESULTS = 4000
"""Results that are remembered, of all operators."""
MOST_LIKE = 4
"""Calls that are remembered for each of them."""
MOST_IGNORED = 8
MOST_VALUES = 6
LONGEST = 60

_Prints: TypeAlias = "dict[str, tuple[object, ...]]"


@dataclass
class Ignored:
    """An argument that results did not depend on, as far as was seen.

    Attributes:
        call: the last that showed it.
        label: the argument.
        values: what it was, for the same result.
        first: the number of the call that the others are held against.
        number: whether it was a plain number, or there and not there, rather than one tensor or another.
    """

    call: Call
    label: str
    values: list[str]
    first: int
    number: bool


class Results:
    """The results of one process, learned call by call."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Ignored] = {}
        self._like: OrderedDict[tuple[object, ...], list[tuple[int, _Prints]]] = OrderedDict()

    def pins(self, call: Call) -> bool:
        """Whether a call is one that is told of."""
        return any(ignored.call is call for ignored in self.found.values())

    def take(self, call: Call, outputs: list[Labelled]) -> None:
        """Take in what a call gave."""
        if (
            not outputs
            or outputs[0][1].mean is None
            or call.mutated
            or any(not _tells(tensor) for _, tensor in outputs)
        ):
            return
        prints = _prints(call)
        if not prints:
            return
        key = (call.op, *(_print(tensor) for _, tensor in outputs))
        like = self._like.get(key)
        if like is None:
            self._like[key] = [(call.n, prints)]
            if len(self._like) > MOST_RESULTS:
                self._like.popitem(last=False)
            return
        for first, before in like:
            if (label := _only_other(before, prints)) is not None:
                self._note(call, label, first, before[label], prints[label])
        if len(like) < MOST_LIKE:
            like.append((call.n, prints))

    def _note(self, call: Call, label: str, first: int, *prints: tuple[object, ...]) -> None:
        key = (call.op, label)
        number = not all(kind == "tensor" for kind, *_ in prints)
        known = self.found.get(key)
        if known is None:
            if len(self.found) >= MOST_IGNORED:
                return
            known = self.found[key] = Ignored(call, label, [], first, number)
        known.call = call
        for value in map(_shown, prints):
            if value not in known.values and len(known.values) < MOST_VALUES:
                known.values.append(value)


def _tells(tensor: schema.Tensor) -> bool:
    """Whether a result of these statistics is not one by chance."""
    return tensor.mean is not None and tensor.min != tensor.max and elements(tensor.shape) > 2


def _print(tensor: schema.Tensor) -> tuple[object, ...]:
    return "tensor", tensor.dtype, tensor.shape, tensor.min, tensor.max, tensor.mean, tensor.nan_count


def _prints(call: Call) -> _Prints:
    """What each argument holds; empty where that of some tensor was not recorded."""
    found: _Prints = {}
    for label, value in call.inputs():
        if isinstance(value, schema.Tensor):
            if value.mean is None:
                return {}
            found[label] = _print(value)
        elif isinstance(value, (bool, int, float)) or value is None:
            found[label] = ("number", value)
        else:
            return {}
    return found


def _only_other(before: _Prints, now: _Prints) -> str | None:
    """The one argument that is another, if all others are the same and there is one."""
    if before.keys() != now.keys() or len(now) < 2:
        return None
    other = [label for label, value in now.items() if value != before[label]]
    return other[0] if len(other) == 1 else None


def _shown(value: tuple[object, ...]) -> str:
    if value[0] == "number":
        return str(value[1])[:LONGEST]
    _, dtype, shape, low, high, *_ = value
    return f"{shape} {dtype} from {low} to {high}"[:LONGEST]
