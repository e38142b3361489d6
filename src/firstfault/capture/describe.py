"""Values → records of them: the one walker over the arguments and results of a call.

    describe((x, 1e-6), walk)  →  Sequence("tuple", 2, [Tensor(shape=(8, 1024), …), 1e-06])

Along the way it collects the tensors it met, with the path to each, for dumps and for telling which
arguments a call changed. It reads no tensor's values, calls no code of the program's where it can avoid
that, and marks whatever it cut.
"""

from __future__ import annotations

import dataclasses
import enum
import gc
import inspect
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch.fx import Proxy

from firstfault.capture import guard
from firstfault.record import schema
from firstfault.record.plain import plain_text
from firstfault.record.text_log import CAPTURE_SKIP

MAX_ITEMS = 64
"""Items of one container that are described; at level 10 all are, up to ``MAX_DUMPED_ITEMS``."""
MAX_DUMPED_ITEMS = 100_000
MAX_DEPTH = 6
MAX_NODES = 512
"""Values described in one call."""
MAX_REPR = 200
MAX_TEXT = 1000
"""Characters of an object's ``repr`` and of a string that are kept."""
MAX_LOOKED_AT = 1000
REPR_DEPTH = 5
"""How many objects, and how deep, are looked at to tell whether a ``repr`` would print a tensor."""

PathKey: TypeAlias = "int | str"


@dataclasses.dataclass(slots=True)
class Found:
    """A tensor that the walk met.

    Attributes:
        path: how to get to it from the arguments or the result.
        tensor: itself, or its plain alias when it is of a subclass.
        given: itself, whatever it is.
        described: its description.
        unreachable: why its values cannot be read one by one, if they cannot.
        whole: whether it can be copied and saved as a whole all the same (sparse, nested).
    """

    path: tuple[PathKey, ...]
    tensor: torch.Tensor
    given: torch.Tensor
    described: schema.Tensor
    unreachable: str | None = None
    whole: bool = False


def version(tensor: torch.Tensor) -> int | None:
    """Torch's in-place counter of a tensor, if it has one."""
    return None if tensor.is_inference() else tensor._version


class Walk:
    """The state of describing one side of one call.

    Attributes:
        found: the tensors met so far.
        cut: how many values the limits left out.
        objects: for a dump, whatever is no tensor and no plain value or container, with the path to it.
    """

    __slots__ = ("active", "cut", "dump", "found", "max_items", "nodes", "objects", "path")

    def __init__(self, *, dump: bool = False) -> None:
        self.found: list[Found] = []
        self.objects: list[tuple[tuple[PathKey, ...], Any]] = []
        self.dump = dump
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
        name = plain_text(name)
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
    try:
        return _other(value, walk) if describer is None else describer(value, walk)
    except Exception as error:  # raised by the object's own methods, or another thread is changing the container
        return schema.Opaque(class_name(value), why=f"describing it raised {class_name(error)}")


def _integer(value: int, walk: Walk) -> schema.Value:
    if -(2**63) <= value < 2**63:
        return value
    bits = value.bit_length()
    return schema.Number(str(value) if bits < MAX_TEXT else f"an int of {bits} bits")


def _float(value: float, walk: Walk) -> schema.Value:
    return value if math.isfinite(value) else schema.Number(str(value))


def _string(value: str, walk: Walk) -> schema.Value:
    if len(value) > MAX_TEXT:
        return schema.Text(plain_text(value[:MAX_TEXT]), len(value))
    return plain_text(value)


def _bytes(value: Any, walk: Walk) -> schema.Value:
    """``bytes`` and its like by their start: a ``repr`` of the whole could be of any size."""
    start = repr(bytes(memoryview(value).cast("B")[:MAX_REPR]))
    return schema.Opaque(class_name(value), repr=start, cut=max(0, memoryview(value).nbytes - MAX_REPR))


# --- tensors


def _tensor(tensor: torch.Tensor, walk: Walk) -> schema.Tensor:
    """A plain ``torch.Tensor`` or ``Parameter``."""
    try:
        offset: int = tensor.storage_offset()  # type: ignore[assignment]
        storage = storage_address(tensor)
        stride = tensor.stride()
        shape, dtype, device, itemsize, nbytes = _layout(tensor.shape, tensor.dtype, tensor.device)
        described = schema.Tensor(
            shape,
            dtype,
            device,
            stride,
            offset,
            storage and storage + offset * itemsize,
            storage,
            nbytes,
            tensor.is_contiguous(),
            tensor.requires_grad,
            version(tensor),
        )
    except Exception:
        return _unusual_tensor(tensor, walk)
    walk.found.append(Found(tuple(walk.path), tensor, tensor, described, _NO_VALUES if device == "meta" else None))
    return described


@lru_cache(maxsize=4096)
def _layout(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> tuple[tuple[int, ...], str, str, int, int]:
    """What a tensor's shape, dtype and device print as; kept, since a serving loop repeats its layouts."""
    return tuple(shape), str(dtype), str(device), dtype.itemsize, math.prod(shape) * dtype.itemsize


def _unusual_tensor(tensor: torch.Tensor, walk: Walk) -> schema.Tensor:
    """A tensor that lacks some of what plain ones have; each field is read on its own.

    They are read by torch's own getters, past what a subclass puts in their place.
    """
    missing: list[str] = []

    def read(name: str, getter: Callable[[], Any], default: Any) -> Any:
        try:
            return getter()
        except Exception:
            missing.append(name)
            return default

    with torch._C.DisableTorchFunctionSubclass():
        if not _is_nested(tensor) and any(type(extent) is not int for extent in _shape(tensor)):
            return _symbolic_tensor(tensor, walk)
        dtype = _dtype(tensor)
        described = schema.Tensor(
            shape=read("shape", lambda: tuple(map(int, _shape(tensor))), ()),
            dtype=str(dtype),
            device=str(_device(tensor)),
            stride=read("stride", lambda: _stride(tensor), None),
            nbytes=read("nbytes", lambda: int(_Base.numel(tensor)) * dtype.itemsize, 0),
            contiguous=read("is_contiguous", lambda: bool(_Base.is_contiguous(tensor)), False),
            requires_grad=read("requires_grad", lambda: bool(_requires_grad(tensor)), False),
            version=read("version", lambda: int(read_version(tensor)), None),
            kind=kind_of(tensor),
            missing=", ".join(missing) or None,
        )
        unreachable = values_unreachable(tensor)
        plain = tensor
        if unreachable is None:
            plain = _Base.detach(tensor)  # shares storage and version counter, runs no code of the subclass
            described.offset, described.storage = int(plain.storage_offset()), storage_address(plain)
            described.ptr = described.storage and described.storage + described.offset * dtype.itemsize
        walk.found.append(Found(tuple(walk.path), plain, tensor, described, unreachable, _is_whole(tensor)))
    return described


def _symbolic_tensor(tensor: torch.Tensor, walk: Walk) -> schema.Tensor:
    """A tensor whose shape is what the program is tracing; a look at a size as a number would fix it in its graph."""
    described = schema.Tensor(
        shape=tuple(extent if type(extent) is int else -1 for extent in _shape(tensor)),
        dtype=str(_dtype(tensor)),
        device=str(_device(tensor)),
        contiguous=False,
        kind=class_name(tensor),
        missing=f"sizes, which are symbolic: {', '.join(map(str, _shape(tensor)))}",
    )
    walk.found.append(Found(tuple(walk.path), tensor, tensor, described, "symbolic sizes"))
    return described


_Base: Any = torch._C.TensorBase
read_storage_address: Any = getattr(torch._C, "_data_address", lambda tensor: tensor.untyped_storage().data_ptr())
_shape = _Base.shape.__get__
_dtype = _Base.dtype.__get__
_device = _Base.device.__get__
_own_layout = _Base.layout.__get__
_requires_grad = _Base.requires_grad.__get__
read_version = _Base._version.__get__
_is_nested = _Base.is_nested.__get__
_is_quantized = _Base.is_quantized.__get__


def _stride(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Torch gives sparse tensors strides of 0, which mean nothing."""
    return tuple(map(int, _Base.stride(tensor))) if _own_layout(tensor) in _STRIDED else None


def kind_of(tensor: torch.Tensor) -> str:
    """The class and layout of a tensor that is not plain: ``DTensor``, ``Tensor, torch.sparse_coo``."""
    layout = _own_layout(tensor)
    traits = {
        "quantized": _is_quantized(tensor),
        "functorch-wrapped": torch._C._functorch.is_functorch_wrapped_tensor(tensor),
        "nested": _is_nested(tensor),
        str(layout): layout != torch.strided,
    }
    return ", ".join((class_name(tensor), *(trait for trait, present in traits.items() if present)))


def values_unreachable(tensor: torch.Tensor) -> str | None:
    """Why the values of a tensor cannot be read without going through code of its own, or None."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "functorch-wrapped tensor"
    if _device(tensor).type == "meta":
        return _NO_VALUES
    if _is_nested(tensor):
        return "nested tensor"
    if _own_layout(tensor) != torch.strided:
        return f"layout {_own_layout(tensor)}"
    if not _has_own_storage(tensor):
        plain = type(tensor) in _PLAIN_TENSORS
        return "its storage has no address" if plain else f"tensor subclass {class_name(tensor)}"
    return None


def storage_address(tensor: torch.Tensor) -> int:
    """Where the storage of a tensor begins; 0 where it has no memory.

    ``data_ptr`` would do, but gives a lazy copy (``torch._lazy_clone``) memory of its own.
    """
    address: int = read_storage_address(tensor)
    return address


def addresses(tensors: tuple[torch.Tensor, ...]) -> list[int]:
    """Where plain tensors begin; 0 for those without memory."""
    return [
        start and start + tensor.storage_offset() * tensor.itemsize
        for tensor, start in zip(tensors, map(read_storage_address, tensors), strict=True)
    ]


def storage_bytes_needed(tensor: torch.Tensor) -> int:
    """How far into its storage a strided tensor reaches, in bytes; 0 for an empty one."""
    if tensor.numel() == 0:
        return 0
    reach = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + reach + 1) * tensor.dtype.itemsize


def _has_own_storage(tensor: torch.Tensor) -> bool:
    """Whether a subclass is a real tensor by itself, and not a wrapper around others."""
    if hasattr(type(tensor), "__tensor_flatten__") or type(tensor).__torch_dispatch__ is not _NO_DISPATCH:
        return False
    try:
        return bool(storage_address(tensor) or _Base.numel(tensor) == 0)
    except Exception:
        return False


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether ``torch.save`` takes a sparse or nested tensor as it is, with no code but torch's own."""
    if _device(tensor).type == "meta" or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return type(tensor) in _PLAIN_TENSORS or _own_layout(tensor) == torch.jagged


_STRIDED = (torch.strided, torch._mkldnn)  # type: ignore[attr-defined]
_NO_VALUES = "meta tensor has no values"
_NO_DISPATCH = torch.Tensor.__torch_dispatch__


# --- containers and objects


def _sequence(value: Any, walk: Walk) -> schema.Value:
    return _nested(value, walk, lambda: _items(value, value, len(value), walk))


def _set(value: Any, walk: Walk) -> schema.Value:
    # Copied first, in one step: another thread may be changing it.
    return _nested(value, walk, lambda: _items(value, list(value), len(value), walk))


def _items(owner: Any, members: Iterable[Any], length: int, walk: Walk) -> schema.Sequence:
    items: list[schema.Value] = []
    for index, item in enumerate(members):
        if index >= walk.max_items or walk.nodes <= 0:
            walk.cut += length - index
            break
        walk.nodes -= 1
        walk.path.append(index)
        items.append(describe(item, walk))
        walk.path.pop()
    return schema.Sequence(class_name(owner), length, items)


def _mapping(value: dict[Any, Any], walk: Walk) -> schema.Value:
    return _nested(value, walk, lambda: _entries(value, list(dict.items(value)), walk, fields=False))


def _entries(owner: Any, entries: list[tuple[Any, Any]], walk: Walk, *, fields: bool) -> schema.Mapping:
    keys: list[str] = []
    values: list[schema.Value] = []
    for key, item in entries[: walk.max_items]:
        if walk.nodes <= 0:
            break
        walk.nodes -= 1
        keys.append(key if fields else _key(key))
        if item is None or item is True or item is False:  # most of what an engine's batch holds
            values.append(item)
            continue
        walk.path.append(plain_text(key) if isinstance(key, str) else _key(key))
        values.append(describe(item, walk))
        walk.path.pop()
    walk.cut += len(entries) - len(keys)
    return schema.Mapping(class_name(owner), len(entries), keys, values, fields)


def _key(key: Any) -> str:
    parts = key if type(key) is tuple else (key,)
    if len(parts) > MAX_DEPTH or any(type(part) not in _SAFE_KEYS for part in parts):
        return class_name(key)
    try:
        return _start(repr(key))
    except ValueError:  # an integer beyond the digits that Python prints
        return class_name(key)


def _start(text: str) -> str:
    """The first characters of ``text``, with a mark where more were left out."""
    text = plain_text(text)
    return text if len(text) <= MAX_REPR else f"{text[:MAX_REPR]}... ({len(text) - MAX_REPR} more characters)"


def _nested(value: Any, walk: Walk, build: Callable[[], schema.Value]) -> schema.Value:
    """Guard one level of nesting against cycles and depth."""
    if id(value) in walk.active:
        return schema.Opaque(class_name(value), why="it contains itself")
    if len(walk.path) > MAX_DEPTH:
        walk.cut += 1
        return schema.Opaque(class_name(value), why=f"nested more than {MAX_DEPTH} deep")
    walk.active.add(id(value))
    try:
        return build()
    finally:
        walk.active.discard(id(value))


def _safe_repr(value: Any, walk: Walk) -> schema.Value:
    return schema.Opaque(class_name(value), repr=repr(value))


def _other(value: Any, walk: Walk) -> schema.Value:
    """Subclasses of the known types, then objects by their fields, attributes or ``repr``.

    The class decides, not what ``__class__`` pretends, and a subclass is read past its own methods.
    """
    kind = type(value)
    if walk.dump:
        walk.objects.append((tuple(walk.path), value))
    if issubclass(kind, torch.Tensor):
        return _unusual_tensor(value, walk)
    if issubclass(kind, enum.Enum):
        return schema.Opaque(class_name(value), repr=_start(f"{class_name(value)}.{value.name}"))
    for base, exact in _EXACT.items():
        if issubclass(kind, base):
            return describe(exact(value), walk)
    sequence = next((base for base in _SEQUENCES if issubclass(kind, base)), None)
    if sequence is not None:
        return _nested(value, walk, lambda: _items(value, sequence.__iter__(value), sequence.__len__(value), walk))
    if issubclass(kind, dict):
        return _mapping(value, walk)
    if issubclass(kind, torch.nn.Module):
        return _module(value)
    if hasattr(kind, "__dataclass_fields__"):
        return _nested(value, walk, lambda: _fields(value, walk))
    return _object(value)


def _fields(value: Any, walk: Walk) -> schema.Value:
    """A dataclass by its fields: its own ``repr`` would print the values of every tensor in it."""
    missing = object()
    entries = [(name, getattr(value, name, missing)) for name in field_names(type(value))]
    return _entries(value, [entry for entry in entries if entry[1] is not missing], walk, fields=True)


def field_names(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields, looked up once: an engine's batch has sixty, and is made anew at each step."""
    try:
        names = _known_fields.get(kind)
        if names is None:
            names = _known_fields[kind] = tuple(field.name for field in dataclasses.fields(kind))
    except TypeError:  # its own class has made it one that cannot be hashed
        names = tuple(field.name for field in dataclasses.fields(kind))
    return names


_known_fields: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def _module(module: torch.nn.Module) -> schema.Opaque:
    """A module by its own line of ``repr``, without those of the modules inside it."""
    name = class_name(module)
    if guard.graph_capture_active():  # some print their scales, which reads them
        return schema.Opaque(name, why=CAPTURE_SKIP)
    try:
        inside = "..." if module._modules else ""
        own = ", ".join(filter(None, (module.extra_repr().replace("\n", ", "), inside)))
    except Exception as error:
        return schema.Opaque(name, why=f"extra_repr raised {class_name(error)}")
    return _shortened(name, f"{name}({own})")


def _object(value: Any) -> schema.Opaque:
    """Anything else: its array-like attributes, else the start of its ``repr``."""
    name = class_name(value)
    if _is_numpy_scalar(value):
        return schema.Opaque(name, repr=_start(str(value)))
    if issubclass(type(value), Proxy):
        return schema.Opaque(name, why="to look at it would add to the graph that torch.fx is tracing")
    if issubclass(type(value), type):
        return schema.Opaque(name, repr=_start(f"<class {value.__module__}.{_type_name(value)}>"))
    arraylike = {attribute: _attribute(value, attribute) for attribute in ("shape", "dtype", "device")}
    if any(text is not None for text in arraylike.values()):
        return schema.Opaque(name, None, arraylike["shape"], arraylike["dtype"], arraylike["device"])
    if getattr(type(value), "__repr__", None) is object.__repr__:
        return schema.Opaque(name, repr=_start(f"<{type(value).__module__}.{name} object>"))
    if _prints_tensors(value):
        return schema.Opaque(name, why="its repr could read tensors")
    try:
        return _shortened(name, repr(value))
    except Exception as error:
        return schema.Opaque(name, why=f"repr raised {class_name(error)}")


def _is_numpy_scalar(value: Any) -> bool:
    """Whether a value is one of numpy's numbers, which look like arrays without dimensions."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), numpy.generic)


def _attribute(value: Any, attribute: str) -> str | None:
    try:
        # What is not there by itself is not asked for: ``__getattr__`` may load a model, or call another process.
        there = inspect.getattr_static(value, attribute, None) is not None
        found = getattr(value, attribute, None) if there else None
        return None if found is None or _prints_tensors(found) else _start(str(found))
    except Exception:
        return None


def _prints_tensors(value: Any) -> bool:
    """Whether the ``repr`` of a value could print a tensor, and so read it; doubt counts as yes."""
    near = [value]
    looked_at = 0
    for _ in range(REPR_DEPTH):
        looked_at += len(near)
        if looked_at > MAX_LOOKED_AT or any(issubclass(type(item), torch.Tensor) for item in near):
            return True
        near = [item for item in gc.get_referents(*near) if not isinstance(item, _NOT_PRINTED)]
    return False


def _shortened(name: str, text: str) -> schema.Opaque:
    text = plain_text(text)
    return schema.Opaque(name, repr=text[:MAX_REPR], cut=max(0, len(text) - MAX_REPR))


def class_name(value: Any) -> str:
    """The name of a value's class, past what its metaclass may put in the place of ``__name__``."""
    return plain_text(_type_name(type(value)))


_type_name: Callable[[type], str] = type.__dict__["__name__"].__get__
"""``type.__name__`` itself, which a metaclass may have replaced."""

_PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_SAFE_KEYS = frozenset((str, int, float, bool, type(None), bytes, torch.dtype, torch.device))
_EXACT: dict[type, Callable[[Any], Any]] = {
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
    complex: complex.__pos__,
}
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_NOT_PRINTED = (type, ModuleType, FunctionType, BuiltinFunctionType, torch.nn.Module, str, int, float)
_DESCRIBERS: dict[type, Callable[[Any, Walk], schema.Value]] = {
    type(None): lambda value, walk: None,
    bool: lambda value, walk: value,
    int: _integer,
    float: _float,
    str: _string,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    complex: lambda value, walk: schema.Number(str(value)),
    list: _sequence,
    tuple: _sequence,
    set: _set,
    frozenset: _sequence,
    deque: _sequence,
    dict: _mapping,
    torch.Size: _sequence,
    torch.dtype: _safe_repr,
    torch.device: _safe_repr,
    torch.layout: _safe_repr,
    torch.memory_format: _safe_repr,
}
