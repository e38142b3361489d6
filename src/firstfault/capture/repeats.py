"""Calls that look like one before → the text that was written for it.

A serving loop repeats its layouts, and describing each anew at every step is most of what a text log costs at
level 3. Whether tensors look as they did is asked of torch's own guards, those of ``torch.compile``: one call
that compares class, dispatch keys, dtype, device, ``requires_grad`` and, where those are not told with each call, shape
and stride of all of them (1.5 µs for two tensors, where reading those one by one takes 9), and that no mode or trace of
the program sees.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from firstfault.capture.describe import Found

_Guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
"""None in a torch without them: every call is then described anew."""

_strided = torch.strided
_function_modes = torch._C._is_torch_function_mode_enabled

MOST_LAYOUTS = 8
"""Layouts that are kept of one operator: a decode step has few; the least recently seen goes first."""

MOST_FRUITLESS = 16
"""Layouts kept of an operator with no call like one of them; of those after that one in so many is still kept."""

MOST_KEPT = 4096
"""Operators, each with every object that it was called on, that layouts are kept of; beyond them all are let go."""

MOST_DEAD = 4
"""Objects of one class that were gone before they were given again; then one stands for all of its class."""

MOST_VALUES = 64
MOST_DEEP = 2
"""Tuples and lists inside one another that are seen through, as a layer's result with its cache is."""
LONGEST_STRING = 200
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_COMPARABLE = frozenset((bool, int, type(None)))
_CONTAINERS = frozenset((tuple, list))


Text = TypeVar("Text")
_Picked: TypeAlias = "Callable[[Sequence[Any]], tuple[Any, ...]]"


@dataclass(frozen=True, slots=True)
class Layout(Generic[Text]):
    """What a call looked like, and what is written for it.

    Attributes:
        types: of the values, with class and length before the items of a tuple or list.
        tensors: picks the tensors among the values.
        distinct: picks them once each.
        again: pairs of values that are one and the same tensor.
        empty: which of the distinct tensors have no elements.
        others: picks what is no tensor, to be compared with ``values``.
        text: the text of it.
    """

    types: tuple[Any, ...]
    names: tuple[str, ...]
    tensors: _Picked
    distinct: _Picked
    again: tuple[tuple[int, int], ...]
    empty: tuple[bool, ...]
    others: _Picked
    values: tuple[Any, ...]
    looks_the_same: Callable[..., bool]
    text: Text


class Repeats(Generic[Text]):
    """The texts of the last layouts of each operator, for one side of its calls."""

    def __init__(self, *, objects: bool = False, sizes: bool = False) -> None:
        """Keep none yet.

        Args:
            objects: whether one that cannot be compared may be written as it was when it was first seen.
            sizes: whether sizes and strides of tensors are told with each call, so that others look the same.

        An engine calls one operator on a hundred layers, so those are looked up by the object; it makes others, such
        as the batch, anew at each step: of those, the first that was seen is written for each.
        """
        self._objects = objects
        self._sizes = sizes
        self._looked_up_by: dict[tuple[Any, ...], _Picked] = {}
        """By the types of the values: what picks the objects among them that stand for themselves."""
        self._dead: dict[type, int] = {}
        self._layouts: dict[Hashable, list[Layout[Text]]] = {}
        self._fruitless: dict[Hashable, int] = {}

    def find(
        self, op: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Layout[Text], tuple[torch.Tensor, ...]] | None:
        """The layout of an earlier call of ``op`` that this one would be written as too, and the tensors of this one.

        Args:
            op: the operator, and what else tells its calls apart.
            args: positional arguments, or a result by itself.
            kwargs: those by keyword.
        """
        flat, types = _flat((*args, *kwargs.values()) if kwargs else args)
        if self._objects:
            op = self._looked_up_under(op, types, flat)
        layouts = [] if _function_modes() else self._layouts.get(op, [])  # such a mode would see us look at tensors
        names = tuple(kwargs)
        for layout in layouts:
            if layout.types != types or layout.names != names:
                continue
            tensors = layout.distinct(flat)
            for tensor in tensors:
                if tensor.layout is not _strided or tensor.is_nested:  # see _has_strides; a call would cost as much
                    return None
            again = layout.again
            if again and not all(flat[one] is flat[other] for one, other in again):
                continue
            if self._is_like(layout, tensors) and layout.values == layout.others(flat):
                if layout is not layouts[0]:  # a new list: another thread may be going through the old one
                    self._layouts[op] = [layout, *(other for other in layouts if other is not layout)]
                if op in self._fruitless:
                    del self._fruitless[op]
                return layout, layout.tensors(flat) if again else tensors
        return None

    def _is_like(self, layout: Layout[Text], tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether tensors look as those of a layout do; one without elements is always another."""
        if self._sizes and tuple([tensor.numel() == 0 for tensor in tensors]) != layout.empty:
            return False
        return layout.looks_the_same(*tensors)

    def keep(self, op: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], text: Text) -> bool:
        """Remember the text that was written for these values, if all in them can be compared; whether they can."""
        flat, types = _flat((*args, *kwargs.values()))
        if _Guards is None or len(flat) > MOST_VALUES:
            return False
        tensors = [index for index, value in enumerate(flat) if type(value) in _PLAIN]
        others = [index for index, value in enumerate(flat) if type(value) not in _PLAIN]
        op = self._key(op, types, flat, others)
        compared = tuple(self._compared(flat[index], op) for index in others)
        if any(value is _NOT_COMPARED for value in compared) or not all(_has_strides(flat[index]) for index in tensors):
            return False
        self._fruitless[op] = fruitless = self._fruitless.get(op, 0) + 1
        if fruitless > MOST_FRUITLESS and fruitless % MOST_FRUITLESS:
            return False
        # Torch's guards take no tensor twice, as attention is given one for query, key and value.
        first = {id(flat[index]): index for index in reversed(tensors)}
        again = tuple((first[id(flat[index])], index) for index in tensors if first[id(flat[index])] != index)
        distinct = _picker(sorted(first.values()))
        try:
            same = _guard(distinct(flat), sizes=not self._sizes)
        except RuntimeError:  # no strides: sparse, nested
            return False
        empty = tuple(tensor.numel() == 0 for tensor in distinct(flat))
        pick, rest = _picker(tensors), _picker(others)
        layout = Layout(types, tuple(kwargs), pick, distinct, again, empty, rest, compared, same, text)
        if len(self._layouts) >= MOST_KEPT:
            self._layouts.clear()
        self._layouts[op] = [layout, *self._layouts.get(op, ())[: MOST_LAYOUTS - 1]]
        return True

    @staticmethod
    def compared(layout: Layout[Text]) -> list[Any]:
        """What the values of a layout that are no tensors must be.

        A weak reference stands for the object that it refers to, ``...`` for anything, and all else for its like.
        """
        return [
            value._reference if isinstance(value, _Same) else ... if value is _ANY else value for value in layout.values
        ]

    def _looked_up_under(self, op: Hashable, types: tuple[Any, ...], flat: Sequence[Any]) -> Hashable:
        pick = self._looked_up_by.get(types)
        return op if pick is None else (op, *map(id, pick(flat)))

    def _key(self, op: Hashable, types: tuple[Any, ...], flat: Sequence[Any], others: list[int]) -> Hashable:
        """What the layouts of a call are kept under: its operator, and the objects that it was called on."""
        if not self._objects:
            return op
        alone = [index for index in others if self._stands_for_itself(type(flat[index]))]
        if not alone:
            self._looked_up_by.pop(types, None)
            return op
        self._looked_up_by[types] = _picker(alone)
        return self._looked_up_under(op, types, flat)

    def _stands_for_itself(self, kind: type) -> bool:
        return kind not in _COMPARABLE and not issubclass(kind, _VALUES) and self._dead.get(kind, 0) < MOST_DEAD

    def _gone(self, kind: type, op: Hashable) -> None:
        """An object is no more that layouts were kept of; called whenever that happens, in any thread."""
        self._layouts.pop(op, None)
        self._dead[kind] = dead = self._dead.get(kind, 0) + 1
        if dead == MOST_DEAD:
            self._looked_up_by.clear()

    def _compared(self, value: Any, op: Hashable) -> Any:
        """What ``value`` is compared with later, or ``_NOT_COMPARED``."""
        kind = type(value)
        if kind in _COMPARABLE or (kind is str and len(value) <= LONGEST_STRING):
            return value
        if kind is float and value == value and value != 0:  # NaN equals nothing; 0.0 equals -0.0, printed otherwise
            return value
        if self._objects and not issubclass(kind, _VALUES):
            if not self._stands_for_itself(kind):
                return _ANY
            with suppress(TypeError):  # not one that can be referred to weakly
                return _Same(weakref.ref(value, lambda reference: self._gone(kind, op)))
        return _NOT_COMPARED


class _Same:
    """Equal to one object alone, which it does not keep alive."""

    __slots__ = ("_reference",)

    def __init__(self, reference: weakref.ref[Any]) -> None:
        self._reference = reference

    def __eq__(self, other: object) -> bool:
        return self._reference() is other

    def __hash__(self) -> int:
        return hash(self._reference)


class _Any:
    """Equal to whatever there is."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


_ANY = _Any()
_NOT_COMPARED = object()
_VALUES = (str, float, complex, bytes, dict, set, frozenset, list, tuple, torch.Tensor)
"""What says nothing by being the same object, or must not be referred to weakly: ``swap_tensors`` refuses those."""


def all_told(args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Found]) -> tuple[torch.Tensor, ...] | None:
    """The tensors that a layout picks of these values; None if a walk over them met others, or in another order.

    Those inside of objects are written as they were when the object was first seen.
    """
    picked = tuple(value for value in _flat((*args, *kwargs.values()))[0] if type(value) in _PLAIN)
    met = [item for item in found if not any(isinstance(key, str) for key in item.path[1:])]
    same = len(picked) == len(met) and all(item.given is value for item, value in zip(met, picked, strict=True))
    return picked if same else None


def _flat(values: Sequence[Any], depth: int = MOST_DEEP) -> tuple[Sequence[Any], tuple[Any, ...]]:
    """The values with those in a tuple or list in its place, so many deep, and the types of all of them."""
    types = tuple(map(type, values))
    if not depth or _CONTAINERS.isdisjoint(types):
        return values, types
    flat: list[Any] = []
    kinds: list[Any] = []
    for value, kind in zip(values, types, strict=True):
        if kind in _CONTAINERS:
            inside, inner = _flat(value, depth - 1)
            kinds += ((kind, len(value)), *inner)
            flat += inside
        else:
            kinds.append(kind)
            flat.append(value)
    return flat, tuple(kinds)


def _picker(indices: list[int]) -> _Picked:
    """What picks the items at ``indices``."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return (lambda values: (values[indices[0]],)) if indices else (lambda values: ())


def _has_strides(tensor: torch.Tensor) -> bool:
    """Whether torch's guards may be asked: of a tensor without strides they end the process (``std::terminate``)."""
    return tensor.layout is _strided and not tensor.is_nested


def _guard(tensors: tuple[torch.Tensor, ...], *, sizes: bool) -> Callable[..., bool]:
    """What tells whether other tensors look exactly like these, be it in ``sizes`` too; it keeps none of them alive."""
    if not tensors:
        return lambda: True
    shapes = [list(tensor.shape) if sizes else [None] * tensor.dim() for tensor in tensors]
    strides = [list(tensor.stride()) if sizes else [None] * tensor.dim() for tensor in tensors]
    check: Callable[..., bool] = _Guards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check
    return check
