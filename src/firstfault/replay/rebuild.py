"""Values as they were described → the values themselves.

    Sequence("tuple", 2, [Tensor(shape=(8, 1024), …), Opaque("dtype", "torch.float16")])  →  (tensor, torch.float16)

What was only described cannot be given again; then the call is not made, and the reason names the argument.
"""

from __future__ import annotations

import ast
import base64
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from firstfault.read.formats.values import unquoted
from firstfault.record import schema
from firstfault.record.dumped import OWNER
from firstfault.replay import reprs, resolve
from firstfault.replay.errors import NotRun

Path = tuple[Any, ...]
TensorAt = Callable[[schema.Tensor, Path], torch.Tensor]
"""The tensor that a description at a path is of."""

_BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "Size": torch.Size,
}
_MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {"dict": dict, "OrderedDict": OrderedDict}
_SLICE = re.compile(r"slice\((.+), (.+), (.+)\)")
_OF_MODULES = ("_modules", "_parameters", "_buffers")
_CUDA = re.compile(r"cuda(:\d+)?")
SAVE_MODULES = "record it with FIRSTFAULT_DUMP_MODULES=1 to save what it holds"


class Rebuilder:
    """Builds the values of one call.

    Attributes:
        missing: attributes of rebuilt objects that were only described, by name, with the reason.
    """

    def __init__(
        self,
        tensor_at: TensorAt,
        objects: Mapping[Path, Mapping[str, Any]],
        device: Callable[[str], str],
        scope: Mapping[str, Any],
    ) -> None:
        """
        Args:
            tensor_at: gives the tensors.
            objects: what the dump says of objects, by path.
            device: where what was on a device goes.
            scope: the names that the function sees, in which a class is looked for of which a dump has the name alone.
        """
        self._tensor_at = tensor_at
        self._objects = objects
        self._device = device
        self._scope = scope
        self._made: dict[Path, Any] = {}
        self.missing: dict[str, str] = {}

    def value(self, value: schema.Value, path: Path) -> Any:
        """One value.

        Raises:
            NotRun: it was only described.
        """
        if isinstance(value, schema.Tensor):
            return self._tensor(value, path)
        if isinstance(value, schema.Sequence):
            return self._sequence(value, path)
        if isinstance(value, schema.Mapping):
            return self._mapping(value, path)
        if isinstance(value, schema.Number):
            return _number(value.text, path)
        if isinstance(value, schema.Text):
            raise NotRun(f"{shown(path)} is a text of {value.length} characters, of which only the start was saved")
        if isinstance(value, schema.Opaque):
            return self._opaque(value, path)
        if isinstance(value, str) and _CUDA.fullmatch(value):
            return self._device(value)
        if path in self._objects and isinstance(value, (int, str, float)):
            return self._object(path, self._objects[path])  # a member of an enumeration of numbers
        return value

    def owner(self) -> Any:
        """The object that the method was called on.

        Raises:
            NotRun: its state was not saved.
        """
        told = self._objects.get((OWNER,))
        if told is None:
            raise NotRun("it is a method, and the object that it was called on is not in the dump")
        return self._object((OWNER,), told)

    def _tensor(self, described: schema.Tensor, path: Path) -> torch.Tensor:
        tensor = self._tensor_at(described, path)
        told = self._objects.get(path)
        if told is None or "class" not in told:
            return tensor
        kind = resolve.by_reference(told["class"])
        return (
            tensor.as_subclass(kind)
            if isinstance(kind, type) and kind not in (torch.Tensor, torch.nn.Parameter)
            else tensor
        )

    def _sequence(self, value: schema.Sequence, path: Path) -> Any:
        if value.length != len(value.items):
            raise NotRun(f"{shown(path)} has {value.length} items, of which only {len(value.items)} were saved")
        items = [self.value(item, (*path, index)) for index, item in enumerate(value.items)]
        if value.name in _BUILDERS and path not in self._objects:
            return _BUILDERS[value.name](items)
        kind = self._class(value.name, path)
        if hasattr(kind, "_fields"):
            return kind._make(items)
        base: Any = next((base for base in (list, tuple, set, frozenset, deque) if issubclass(kind, base)), None)
        if base is None:
            raise NotRun(f"{shown(path)} is a {value.name}, which is no sequence here")
        made = base.__new__(kind, items)
        if base in (list, set, deque):
            base.__init__(made, items)
        return made

    def _mapping(self, value: schema.Mapping, path: Path) -> Any:
        if value.length != len(value.keys):
            raise NotRun(f"{shown(path)} has {value.length} entries, of which only {len(value.keys)} were saved")
        if value.fields:
            return self._fields(value, path)
        items = {}
        for key, item in zip(value.keys, value.values, strict=True):
            items[_key(key, path)] = self.value(item, (*path, unquoted(key)))
        if value.name in _MAPPINGS and path not in self._objects:
            return _MAPPINGS[value.name](items)
        kind = self._class(value.name, path)
        if kind is OrderedDict or kind is defaultdict:
            return OrderedDict(items) if kind is OrderedDict else defaultdict(None, items)
        if not issubclass(kind, dict):
            raise NotRun(f"{shown(path)} is a {value.name}, which is no dict here")
        made = dict.__new__(kind)
        dict.update(made, items)
        return made

    def _fields(self, value: schema.Mapping, path: Path) -> Any:
        """A dataclass, without running what it does to its fields when it is made."""
        first = self._first(path)
        if first in self._made:
            return self._made[first]
        kind = self._class(value.name, path)
        made = object.__new__(kind)
        self._made[path] = self._made[first] = made
        for name, item in zip(value.keys, value.values, strict=True):
            object.__setattr__(made, name, self.value(item, (*path, name)))
        return made

    def _first(self, path: Path) -> Path:
        """Where the object at a path was met first: there the dump tells of it."""
        return tuple(self._objects.get(path, {}).get("same", path))

    def _class(self, name: str, path: Path) -> Any:
        told = self._objects.get(self._first(path))
        if told is not None and "class" in told:
            if told["class"].get("module") == "collections":
                return {"OrderedDict": OrderedDict, "defaultdict": defaultdict, "deque": deque}[
                    told["class"]["qualname"]
                ]
            kind = resolve.by_reference(told["class"])
        else:
            kind = self._scope.get(name)
        if not isinstance(kind, type):
            raise NotRun(f"{shown(path)} is a {name}, a class that the dump does not say where to find")
        return kind

    def _opaque(self, value: schema.Opaque, path: Path) -> Any:
        told = self._objects.get(path)
        text = value.repr or ""
        plain = _plain_object(value, path, self._device)
        if plain is not _NOTHING:
            return plain
        if told is not None:
            return self._object(path, told, text)
        member = text.partition(".")
        kind = self._scope.get(member[0])
        if member[2] and isinstance(kind, type) and member[2] in getattr(kind, "__members__", {}):
            return kind[member[2]]  # type: ignore[index]
        raise NotRun(f"{shown(path)} is a {value.name}, of which only a description was saved")

    def _object(self, path: Path, told: Mapping[str, Any], text: str = "") -> Any:
        if path in self._made:
            return self._made[path]
        if "same" in told:
            same = tuple(told["same"])
            return self._made[same] if same in self._made else self._object(same, self._objects[same], text)
        self._made[path] = made = self._new_object(path, told, text)
        return made

    def _new_object(self, path: Path, told: Mapping[str, Any], text: str) -> Any:
        if "type" in told:
            return _type(told["type"])
        if "function" in told:
            return resolve.function(told["function"], str(told["function"].get("qualname", shown(path))))
        if "generator" in told:
            return self._generator(told["generator"])
        reference = told.get("class", {})
        if reference.get("module") == "numpy" and text:
            return _numpy_scalar(reference, text, path)
        kind = resolve.by_reference(reference)
        if "member" in told:
            return getattr(kind, str(told["member"]))
        if "state" not in told:
            raise NotRun(f"{shown(path)} is a {reference.get('qualname')}, whose state was not saved; {SAVE_MODULES}")
        return self._stateful(path, kind, told)

    def _stateful(self, path: Path, kind: Any, told: Mapping[str, Any]) -> Any:
        """An object with the attributes that were saved; those that were only described it does not get."""
        import msgspec

        made = object.__new__(kind)
        self._made[path] = made
        if told.get("is_module"):
            torch.nn.Module.__init__(made)
        state = msgspec.convert(told["state"], schema.Mapping)
        for name, item in zip(state.keys, state.values, strict=True):
            try:
                found = self.value(item, (*path, name))
            except NotRun as why:
                self.missing[name] = str(why)
                continue
            made.__dict__[name] = _parameters(found) if name == "_parameters" and told.get("is_module") else found
        return made

    def _generator(self, told: Mapping[str, Any]) -> torch.Generator:
        generator = torch.Generator(self._device(str(told["device"])))
        generator.set_state(torch.frombuffer(bytearray(base64.b64decode(told["state"])), dtype=torch.uint8))
        return generator


_NOTHING: Any = object()


def _plain_object(value: schema.Opaque, path: Path, device: Callable[[str], str]) -> Any:
    """Values of torch's and Python's own that their ``repr`` tells whole; ``_NOTHING`` for others."""
    text = value.repr or ""
    if value.cut and value.name in ("bytes", "bytearray"):
        raise NotRun(f"{shown(path)} is {value.name} of which only the start was saved")
    if value.name in reprs.TORCHS_NAMES and (match := reprs.OF_TORCH.fullmatch(text)):
        return getattr(torch, match[1])
    if value.name == "dtype" and (match := reprs.OF_TRITON.fullmatch(text)):
        return resolve.by_reference({"module": "triton.language", "qualname": match[1]})
    if value.name == "device":
        match = reprs.DEVICE.fullmatch(text)
        name = (match[1] + (f":{match[2]}" if match[2] else "")) if match else text
        return torch.device(device(name))
    if value.name in ("bytes", "bytearray") and text:
        return {"bytes": bytes, "bytearray": bytearray}[value.name](
            ast.literal_eval(text.removeprefix("bytearray(").rstrip(")"))
            if text.startswith("bytearray")
            else ast.literal_eval(text)
        )
    if value.name == "ellipsis":
        return ...
    if value.name == "slice" and (match := _SLICE.fullmatch(text)):
        return slice(*map(ast.literal_eval, match.groups()))
    if value.name == "range" and text.startswith("range("):
        return range(*ast.literal_eval(text.removeprefix("range").replace(")", ",)")))
    return _NOTHING


def _parameters(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.nn.Parameter(item, requires_grad=item.requires_grad) if isinstance(item, torch.Tensor) else item
        for name, item in found.items()
    }


def _type(reference: Mapping[str, Any]) -> Any:
    if reference.get("module") == "builtins":
        import builtins

        found = getattr(builtins, str(reference.get("qualname")), None)
        if isinstance(found, type):
            return found
    return resolve.by_reference(reference)


def _numpy_scalar(reference: Mapping[str, Any], text: str, path: Path) -> Any:
    import numpy

    kind = getattr(numpy, str(reference.get("qualname")), None)
    if not isinstance(kind, type) or not issubclass(kind, numpy.generic):
        raise NotRun(f"{shown(path)} is a numpy {reference.get('qualname')}, of which only a description was saved")
    return kind(text == "True" if kind is numpy.bool_ else text)


def _number(text: str, path: Path) -> Any:
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            continue
    raise NotRun(f"{shown(path)} is {text}, of which not all digits were saved")


def _key(text: str, path: Path) -> Any:
    """A dict's key, from its ``repr``."""
    if match := reprs.OF_TORCH.fullmatch(text):
        return getattr(torch, match[1])
    if match := reprs.DEVICE.fullmatch(text):
        return torch.device(match[1], int(match[2])) if match[2] else torch.device(match[1])
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise NotRun(f"{shown(path)} has a key {text}, of which only a description was saved") from None


def shown(path: Path) -> str:
    """A path as the text log names it."""
    from firstfault.capture.describe import label

    first, *rest = path
    inside = next((at for at, step in enumerate(path) if step in _OF_MODULES), len(path))
    within = "".join(f".{step}" for step in path[inside:] if step not in _OF_MODULES)
    return label(("self", *rest[: inside - 1]) if first == OWNER else path[:inside]) + within
