"""What the values of a type are to the walk in C (``crossing/walk.c``): what must be the same for one description.

    told(ForwardBatch)  →  (FIELDS, ("batch_size", "input_ids", …))

C itself knows tensors, plain values, lists, tuples and dicts. All else it asks for here, once a type; where only
``describe.py`` can tell what a value is described as, it asks for that too, at each call.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections import deque
from typing import Any

import msgspec
import torch
from torch.fx import Proxy

from firstfault.capture import describe, guard
from firstfault.record import schema

NEVER, MEMBER, SINGLE, FIELDS, OBJECT, ASKED, SEQUENCE, MAPPING = range(8)
"""How a value is told, as in ``crossing.h``.

NEVER: a call with one is described each time.
MEMBER: of an enumeration, so by being the same.
SINGLE: of torch's own that there is one of, likewise.
FIELDS: a dataclass, by its fields, which are looked into.
OBJECT: by its class, and what it says itself of ``SHOWN``.
ASKED: by its description.
SEQUENCE: a tuple or list by another name, by its items.
MAPPING: a dict by another name, likewise; with the names of its fields if it is a dataclass too.
"""

SHOWN = ("shape", "dtype", "device")
"""What ``describe.py`` shows of an object that has it."""

_SINGLE = (torch.dtype, torch.layout, torch.memory_format)
_ASKED = (bytes, bytearray, memoryview, complex, torch.device)
_NEVER = (torch.Tensor, int, float, str, complex, set, frozenset, deque)


def told(kind: type) -> tuple[int, tuple[str, ...]]:
    """How the values of a type are told, and the names of the attributes that are looked at."""
    if kind in _SINGLE:
        return SINGLE, ()
    if issubclass(kind, enum.Enum):
        return MEMBER, ()
    if kind in _ASKED:
        return ASKED, ()
    if issubclass(kind, _NEVER):
        return NEVER, ()
    if issubclass(kind, (tuple, list)):
        return SEQUENCE, ()
    if issubclass(kind, dict):
        return _of_fields(kind, MAPPING) if hasattr(kind, "__dataclass_fields__") else (MAPPING, ())
    if issubclass(kind, torch.nn.Module):
        return ASKED, ()
    if hasattr(kind, "__dataclass_fields__"):
        return _of_fields(kind, FIELDS)
    return (OBJECT, SHOWN) if _is_told_by_class(kind) else (ASKED, ())


def described(value: Any) -> bytes | None:
    """What a value is described as, if it is by one that nothing is inside of."""
    walk = describe.Walk()
    with guard.unseen():
        found = describe.describe(value, walk)
    if walk.found or type(found) not in (schema.Opaque, schema.Number):
        return None
    return msgspec.json.encode(found)


def _of_fields(kind: type, how: int) -> tuple[int, tuple[str, ...]]:
    """A dataclass, if to get its fields runs no code."""
    names = tuple(map(sys.intern, describe.field_names(kind)))
    return (how, names) if all(_is_plain(kind, name) for name in names) else (NEVER, ())


def _is_plain(kind: type, name: str) -> bool:
    """Whether to get an attribute of an object runs no code, and gives what lies in the object where that has it."""
    return not hasattr(type(inspect.getattr_static(kind, name, None)), "__get__")


def _is_told_by_class(kind: type) -> bool:
    """Whether objects of a class are described by its name, as far as they have no attributes that are ``SHOWN``."""
    return (
        getattr(kind, "__repr__", None) is object.__repr__
        and not issubclass(kind, (type, Proxy))
        and not any(name in vars(base) for base in kind.__mro__ for name in SHOWN)
    )
