"""Values → records of them: the one walker over the arguments and results of a call.

    describe((x, 1e-6), walk)  →  Sequence("tuple", 2, [Tensor(shape=(8, 1024), …), 1e-06])

Along the way it collects the tensors it met, with the path to each, for dumps and for telling which
arguments a call changed. It reads no tensor's values, calls no code of the program's where it can avoid
that, and marks whatever it cut.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from firstfault.record import schema

MAX_ITEMS = 64
"""Items of one container that are described; at level 10 all are, up to ``MAX_DUMPED_ITEMS``."""
MAX_DUMPED_ITEMS = 100_000
MAX_DEPTH = 6
MAX_NODES = 512
"""Values described in one call."""
MAX_REPR = 200
MAX_TEXT = 1000
"""Characters of an object's ``repr`` and of a string that are kept."""

PathKey: TypeAlias = "int | str"


@dataclasses.dataclass(slots=True)
class Found:
    """A tensor that the walk met; ``unreachable`` says why its values cannot be read, if they cannot."""

    path: tuple[PathKey, ...]
    tensor: torch.Tensor
    described: schema.Tensor
    unreachable: str | None = None


class Walk:
    """The state of describing one side of one call.

    Attributes:
        found: the tensors met so far.
        cut: how many values the limits left out.
    """

    __slots__ = ("active", "cut", "found", "max_items", "nodes", "path")

    def __init__(self, *, dump: bool = False) -> None:
        self.found: list[Found] = []
        self.path: list[PathKey] = []
        self.active: set[int] = set()
        self.max_items = MAX_DUMPED_ITEMS if dump else MAX_ITEMS
        self.nodes = MAX_DUMPED_ITEMS if dump else MAX_NODES
        self.cut = 0


def label(path: tuple[PathKey, ...]) -> str:
    """A path as the text log names it: ``arg[0]``, ``arg[1][2]``, ``x``, ``x['k']``."""
    first, *rest = path
    return (f"arg[{first}]" if isinstance(first, int) else first) + "".join(f"[{key!r}]" for key in rest)


def describe_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], walk: Walk
) -> tuple[list[schema.Value], dict[str, schema.Value]]:
    """Describe the arguments of a call; paths begin with the position or the keyword."""
    described: list[schema.Value] = []
    for index, value in enumerate(args):
        walk.path.append(index)
        described.append(describe(value, walk))
        walk.path.pop()
    if not kwargs:
        return described, {}
    named: dict[str, schema.Value] = {}
    for name, value in kwargs.items():
        walk.path.append(name)
        named[name] = describe(value, walk)
        walk.path.pop()
    return described, named


def describe(value: Any, walk: Walk) -> schema.Value:
    """The record of ``value``."""
    kind = type(value)
    if kind in _PLAIN_TENSORS:
        return _tensor(value, walk)
    describer = _DESCRIBERS.get(kind)
    if describer is not None:
        return describer(value, walk)
    try:
        return _other(value, walk)
    except Exception as error:  # raised by the object's own methods, which is the program's affair
        return schema.Opaque(kind.__name__, why=f"describing it raised {type(error).__name__}")


def _integer(value: int, walk: Walk) -> schema.Value:
    return value if -(2**63) <= value < 2**63 else schema.Number(str(value) if value.bit_length() < 10_000 else "int")


def _float(value: float, walk: Walk) -> schema.Value:
    return value if math.isfinite(value) else schema.Number(str(value))


def _string(value: str, walk: Walk) -> schema.Value:
    if len(value) > MAX_TEXT:
        return schema.Text(_encodable(value[:MAX_TEXT]), len(value))
    return _encodable(value)


def _encodable(text: str) -> str:
    """``text`` without lone surrogates, which UTF-8 cannot carry."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# --- tensors


def _tensor(tensor: torch.Tensor, walk: Walk) -> schema.Tensor:
    """A plain ``torch.Tensor`` or ``Parameter``."""
    try:
        offset: int = tensor.storage_offset()  # type: ignore[assignment]
        ptr = tensor.data_ptr()
        stride = tensor.stride()
        dtype, device, itemsize = _names(tensor.dtype, tensor.device)
        described = schema.Tensor(
            tuple(tensor.shape),
            dtype,
            device,
            stride,
            offset,
            ptr,
            ptr - offset * itemsize,
            tensor.numel() * itemsize,
            tensor.is_contiguous(),
            tensor.requires_grad,
            None if tensor.is_inference() else tensor._version,
        )
    except Exception:
        return _unusual_tensor(tensor, walk)
    walk.found.append(Found(tuple(walk.path), tensor, described, _NO_VALUES if device == "meta" else None))
    return described


@lru_cache(maxsize=256)
def _names(dtype: torch.dtype, device: torch.device) -> tuple[str, str, int]:
    return str(dtype), str(device), dtype.itemsize


def _unusual_tensor(tensor: torch.Tensor, walk: Walk) -> schema.Tensor:
    """A tensor that lacks some of what plain ones have; each field is read on its own."""
    with torch._C.DisableTorchFunctionSubclass():
        missing: list[str] = []

        def read(name: str, getter: Callable[[], Any], default: Any) -> Any:
            try:
                return getter()
            except Exception:
                missing.append(name)
                return default

        described = schema.Tensor(
            shape=read("shape", lambda: tuple(int(extent) for extent in tensor.shape), ()),
            dtype=str(tensor.dtype),
            device=str(tensor.device),
            stride=read("stride", lambda: tuple(int(step) for step in tensor.stride()), None),
            nbytes=read("nbytes", lambda: int(tensor.numel()) * tensor.dtype.itemsize, 0),
            contiguous=read("is_contiguous", lambda: bool(tensor.is_contiguous()), False),
            requires_grad=read("requires_grad", lambda: bool(tensor.requires_grad), False),
            version=read("version", lambda: int(tensor._version), None),
            kind=kind_of(tensor),
        )
        if missing:
            described.missing = ", ".join(missing)
        walk.found.append(Found(tuple(walk.path), tensor, described, values_unreachable(tensor)))
    return described


def kind_of(tensor: torch.Tensor) -> str:
    """The class and layout of a tensor that is not plain: ``DTensor``, ``Tensor, torch.sparse_coo``."""
    name = type(tensor).__name__
    if tensor.is_quantized:
        name += ", quantized"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        name += ", functorch-wrapped"
    return name if tensor.layout == torch.strided else f"{name}, {tensor.layout}"


def values_unreachable(tensor: torch.Tensor) -> str | None:
    """Why the values of a tensor cannot be read without going through code of its own, or None."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "functorch-wrapped tensor"
    if tensor.device.type == "meta":
        return _NO_VALUES
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout != torch.strided:
        return f"layout {tensor.layout}"
    if type(tensor) not in _PLAIN_TENSORS and not _has_own_storage(tensor):
        return f"tensor subclass {type(tensor).__name__}"
    return None


def _has_own_storage(tensor: torch.Tensor) -> bool:
    """Whether a subclass is a real tensor by itself, and not a wrapper around others."""
    if hasattr(type(tensor), "__tensor_flatten__") or type(tensor).__torch_dispatch__ is not _NO_DISPATCH:
        return False
    try:
        return bool(tensor.data_ptr() or tensor.numel() == 0)
    except Exception:
        return False


_NO_VALUES = "meta tensor has no values"
_NO_DISPATCH = torch.Tensor.__torch_dispatch__


# --- containers and objects


def _sequence(value: Any, walk: Walk) -> schema.Value:
    return _nested(value, walk, lambda: _items(value, walk))


def _items(value: Any, walk: Walk) -> schema.Sequence:
    items: list[schema.Value] = []
    for index, item in enumerate(value):
        if index >= walk.max_items or walk.nodes <= 0:
            walk.cut += len(value) - index
            break
        walk.nodes -= 1
        walk.path.append(index)
        items.append(describe(item, walk))
        walk.path.pop()
    return schema.Sequence(_class_name(value), len(value), items)


def _mapping(value: dict[Any, Any], walk: Walk) -> schema.Value:
    return _nested(value, walk, lambda: _entries(value, list(value.items()), walk, fields=False))


def _entries(owner: Any, entries: list[tuple[Any, Any]], walk: Walk, *, fields: bool) -> schema.Mapping:
    keys: list[str] = []
    values: list[schema.Value] = []
    for key, item in entries[: walk.max_items]:
        if walk.nodes <= 0:
            break
        walk.nodes -= 1
        keys.append(key if fields else _key(key))
        walk.path.append(key if isinstance(key, str) else _key(key))
        values.append(describe(item, walk))
        walk.path.pop()
    walk.cut += len(entries) - len(keys)
    return schema.Mapping(_class_name(owner), len(entries), keys, values, fields)


def _key(key: Any) -> str:
    parts = key if type(key) is tuple else (key,)
    safe = all(type(part) in _SAFE_KEYS for part in parts)
    return _encodable(repr(key)[:MAX_REPR]) if safe else _class_name(key)


def _nested(value: Any, walk: Walk, build: Callable[[], schema.Value]) -> schema.Value:
    """Guard one level of nesting against cycles and depth."""
    if id(value) in walk.active:
        return schema.Opaque(_class_name(value), why="it contains itself")
    if len(walk.path) > MAX_DEPTH:
        walk.cut += 1
        return schema.Opaque(_class_name(value), why=f"nested more than {MAX_DEPTH} deep")
    walk.active.add(id(value))
    try:
        return build()
    finally:
        walk.active.discard(id(value))


def _safe_repr(value: Any, walk: Walk) -> schema.Value:
    return schema.Opaque(_class_name(value), repr=_encodable(repr(value)[:MAX_REPR]))


def _other(value: Any, walk: Walk) -> schema.Value:
    """Subclasses of the known types, then objects by their fields, attributes or ``repr``."""
    if isinstance(value, torch.Tensor):
        return _unusual_tensor(value, walk)
    if isinstance(value, enum.Enum):
        return schema.Opaque(_class_name(value), repr=f"{_class_name(value)}.{value.name}")
    if isinstance(value, (int, float, str)):
        base: Any = next(kind for kind in (int, float, str) if isinstance(value, kind))
        return describe(base.__new__(base, value), walk)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _sequence(value, walk)
    if isinstance(value, dict):
        return _mapping(value, walk)
    if isinstance(value, torch.nn.Module):
        return _module(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _nested(value, walk, lambda: _fields(value, walk))
    return _object(value)


def _fields(value: Any, walk: Walk) -> schema.Value:
    """A dataclass by its fields: its own ``repr`` would print the values of every tensor in it."""
    missing = object()
    entries = [(field.name, getattr(value, field.name, missing)) for field in dataclasses.fields(value)]
    return _entries(value, [entry for entry in entries if entry[1] is not missing], walk, fields=True)


def _module(module: torch.nn.Module) -> schema.Opaque:
    """A module by its own line of ``repr``, without those of the modules inside it."""
    name = _class_name(module)
    try:
        inside = "..." if module._modules else ""
        own = ", ".join(filter(None, (module.extra_repr().replace("\n", ", "), inside)))
    except Exception as error:
        return schema.Opaque(name, why=f"extra_repr raised {type(error).__name__}")
    return _shortened(name, f"{name}({own})")


def _object(value: Any) -> schema.Opaque:
    """Anything else: its array-like attributes, else the start of its ``repr``."""
    name = _class_name(value)
    arraylike = {attribute: _attribute(value, attribute) for attribute in ("shape", "dtype", "device")}
    if any(text is not None for text in arraylike.values()):
        return schema.Opaque(name, None, arraylike["shape"], arraylike["dtype"], arraylike["device"])
    if getattr(type(value), "__repr__", None) is object.__repr__:
        return schema.Opaque(name, repr=f"<{type(value).__module__}.{name} object>")
    if _holds_tensors(value):
        return schema.Opaque(name, why="its repr could read tensors")
    try:
        return _shortened(name, repr(value))
    except Exception as error:
        return schema.Opaque(name, why=f"repr raised {type(error).__name__}")


def _attribute(value: Any, attribute: str) -> str | None:
    try:
        found = getattr(value, attribute, None)
        return None if found is None else _encodable(str(found)[:MAX_REPR])
    except Exception:
        return None


def _holds_tensors(value: Any) -> bool:
    try:
        held = vars(value).values()
    except TypeError:
        return False
    return any(isinstance(item, torch.Tensor) for item in held)


def _shortened(name: str, text: str) -> schema.Opaque:
    return schema.Opaque(name, repr=_encodable(text[:MAX_REPR]), cut=max(0, len(text) - MAX_REPR))


def _class_name(value: Any) -> str:
    return type(value).__name__


_PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_SAFE_KEYS = frozenset((str, int, float, bool, type(None), bytes, torch.dtype, torch.device))
_DESCRIBERS: dict[type, Callable[[Any, Walk], schema.Value]] = {
    type(None): lambda value, walk: None,
    bool: lambda value, walk: value,
    int: _integer,
    float: _float,
    str: _string,
    complex: lambda value, walk: schema.Number(str(value)),
    list: _sequence,
    tuple: _sequence,
    set: _sequence,
    frozenset: _sequence,
    dict: _mapping,
    torch.Size: _sequence,
    torch.dtype: _safe_repr,
    torch.device: _safe_repr,
    torch.layout: _safe_repr,
    torch.memory_format: _safe_repr,
}
