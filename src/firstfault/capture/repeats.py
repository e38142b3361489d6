"""Calls that look like one before → the text that was written for it.

A serving loop repeats its layouts, and describing each anew at every step is most of what a text log costs at
level 3. Whether tensors look as they did is asked of torch's own guards, those of ``torch.compile``: one call
that compares class, dispatch keys, dtype, device, shape, stride and ``requires_grad`` of all of them (1.5 µs
for two tensors, where reading those one by one takes 9), and that no mode or trace of the program sees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

import torch

_Guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
"""None in a torch without them: every call is then described anew."""

_strided = torch.strided
_function_modes = torch._C._is_torch_function_mode_enabled

MOST_LAYOUTS = 8
"""Layouts that are kept of one operator: a decode step has few; the least recently seen goes first."""

MOST_VALUES = 64
LONGEST_STRING = 200
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_COMPARABLE = frozenset((bool, int, type(None)))


Text = TypeVar("Text")
_Picked: TypeAlias = "Callable[[tuple[Any, ...]], tuple[Any, ...]]"


@dataclass(frozen=True, slots=True)
class Layout(Generic[Text]):
    """What a call looked like, and what is written for it.

    Attributes:
        tensors: picks the tensors among the values.
        distinct: picks them once each.
        again: pairs of values that are one and the same tensor.
        text: the text of it.
    """

    types: tuple[type, ...]
    names: tuple[str, ...]
    tensors: _Picked
    distinct: _Picked
    again: tuple[tuple[int, int], ...]
    others: _Picked
    values: tuple[Any, ...]
    looks_the_same: Callable[..., bool]
    text: Text


class Repeats(Generic[Text]):
    """The texts of the last layouts of each operator, for one side of its calls."""

    def __init__(self) -> None:
        self._layouts: dict[Hashable, list[Layout[Text]]] = {}

    def find(self, op: Hashable, values: tuple[Any, ...], names: tuple[str, ...]) -> Layout[Text] | None:
        """The layout of an earlier call of ``op`` that this one would be written as too.

        Args:
            op: the operator, and what else tells its calls apart.
            values: positional arguments, then those by keyword.
            names: the keywords.
        """
        layouts = self._layouts.get(op)
        if layouts is None or _function_modes():  # such a mode would see us look at the tensors
            return None
        types = tuple(map(type, values))
        for layout in layouts:
            if layout.types != types or layout.names != names:
                continue
            tensors = layout.distinct(values)
            for tensor in tensors:
                if tensor.layout is not _strided or tensor.is_nested:  # see _has_strides; a call would cost as much
                    return None
            if layout.again and not all(values[one] is values[other] for one, other in layout.again):
                continue
            if layout.looks_the_same(*tensors) and layout.others(values) == layout.values:
                if layout is not layouts[0]:  # a new list: another thread may be going through the old one
                    self._layouts[op] = [layout, *(other for other in layouts if other is not layout)]
                return layout
        return None

    def keep(self, op: Hashable, values: tuple[Any, ...], names: tuple[str, ...], text: Text) -> bool:
        """Remember the text that was written for ``values``, if all in them can be compared; whether they can."""
        types = tuple(map(type, values))
        if _Guards is None or len(values) > MOST_VALUES or not all(map(_comparable, values)):
            return False
        tensors = [index for index, kind in enumerate(types) if kind in _PLAIN]
        # Torch's guards take no tensor twice, as attention is given one for query, key and value.
        first = {id(values[index]): index for index in reversed(tensors)}
        again = tuple((first[id(values[index])], index) for index in tensors if first[id(values[index])] != index)
        distinct = _picker(sorted(first.values()))
        others = _picker([index for index, kind in enumerate(types) if kind not in _PLAIN])
        try:
            same = _guard(distinct(values))
        except RuntimeError:  # no strides: sparse, nested
            return False
        layout = Layout(types, names, _picker(tensors), distinct, again, others, others(values), same, text)
        self._layouts[op] = [layout, *self._layouts.get(op, ())[: MOST_LAYOUTS - 1]]
        return True


def _picker(indices: list[int]) -> _Picked:
    """What picks the items at ``indices`` out of a tuple."""
    if not indices:
        return lambda values: ()
    return itemgetter(*indices) if len(indices) > 1 else itemgetter(slice(indices[0], indices[0] + 1))


def _comparable(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return _has_strides(value)
    if kind is str:
        return len(value) <= LONGEST_STRING
    if kind is float:
        return bool(value == value and value != 0)  # NaN equals nothing; 0.0 equals -0.0 and prints differently
    return kind in _COMPARABLE


def _has_strides(tensor: torch.Tensor) -> bool:
    """Whether torch's guards may be asked: of a tensor without strides they end the process (``std::terminate``)."""
    return tensor.layout is _strided and not tensor.is_nested


def _guard(tensors: tuple[torch.Tensor, ...]) -> Callable[..., bool]:
    """What tells whether other tensors look exactly like these; it keeps none of them alive."""
    if not tensors:
        return lambda: True
    check: Callable[..., bool] = _Guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return check
