"""Which arguments a call changed in place: those that it is declared to, and those whose in-place counter moved.

watched(walk.found)  …  changed(those, declared, args, kwargs)  →  [(1,), ("cache", 0)]
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, TypeAlias

import torch

from firstfault.capture.describe import Found, PathKey, read_version, version

Watched: TypeAlias = "tuple[tuple[PathKey, ...], int, int | None]"
"""A tensor that a call may change in place: path, ``id``, and torch's in-place counter before it, if kept.

It is neither held, for a call may free its arguments and count on their memory, nor referred to weakly, for
``torch.utils.swap_tensors`` then refuses it: it is looked up again among the arguments.
"""


def watched(found: list[Found]) -> list[Watched]:
    """What tells later which of the tensors that a walk met were written to."""
    return [(item.path, id(item.given), item.described.version) for item in found]


def watch(paths: list[tuple[PathKey, ...]], tensors: tuple[torch.Tensor, ...]) -> list[Watched]:
    """The same, of tensors that look like those of an earlier walk."""
    return [(path, id(tensor), version(tensor)) for path, tensor in zip(paths, tensors, strict=True)]


def changed(
    watched: list[Watched], declared: Collection[int | str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[PathKey, ...]]:
    """Paths of the arguments that a call is declared to write to, or was seen to by torch's in-place counter."""
    return [
        path
        for path, number, before in watched
        if (declared and path[0] in declared)
        or (before is not None and _was_written_to(_at(path, args, kwargs), number, before))
    ]


def _was_written_to(tensor: Any, number: int, before: int) -> bool:
    return id(tensor) == number and isinstance(tensor, torch.Tensor) and read_version(tensor) != before


def _at(path: tuple[PathKey, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What lies at a path among the arguments now, if that can be told without code of the program's."""
    first, *rest = path
    value: Any = args[first] if isinstance(first, int) else kwargs.get(first)
    for key in rest:
        kind = type(value)
        if kind in (list, tuple) and isinstance(key, int):
            value = value[key] if key < len(value) else None
        elif kind is dict:
            value = value.get(key)
        elif hasattr(kind, "__dataclass_fields__"):
            value = inspect.getattr_static(value, str(key), None)
        else:
            return None
    return value
