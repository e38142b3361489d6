"""The arguments and results of a dump, put together again from its metadata and its saved tensors.

    {"arg_0__container": {"type": "list", "length": 2}}, {"arg_0_0": …, "arg_0_1": …}   (SGLang)
    {"arg_0": {"type": "list", "items": [{"tensor_key": "arg_0__0"}, …]}}               (FlashInfer)

Ours has the arguments as they were recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.formats.saved_tensor import SavedTensor
from firstfault.read.formats.values import too_deep
from firstfault.record import schema
from firstfault.record.plain import plain_text

MOST_ITEMS = 100_000
"""Items of all containers of one side of a call, however deep they lie."""
_DEEPEST = 20
_CONTAINER = "__container"
_POSITIONAL = re.compile(r"arg_(\d{1,4})(?:_.*)?", re.DOTALL)
_RESULT = re.compile(r"result_(\d{1,4})(?:_.*)?", re.DOTALL)
_LONGEST_TEXT = 1000


def arguments(
    metadata: dict[str, Any], saved: Mapping[str, SavedTensor]
) -> tuple[list[schema.Value], dict[str, schema.Value]]:
    """Positional and named arguments; a positional one that is not known at all is None."""
    found = keyed_arguments(metadata, saved)
    return found.positional, found.named


class Keyed(NamedTuple):
    """The arguments of a call, or its result as the only positional one, and where their tensors are saved.

    Attributes:
        positional, named: the values.
        keys: by ``id`` of a tensor's description, the key that it is saved under; empty for a dump of ours, which
            tells that by the path to each.
    """

    positional: list[schema.Value]
    named: dict[str, schema.Value]
    keys: dict[int, str]


def keyed_arguments(metadata: dict[str, Any], saved: Mapping[str, SavedTensor]) -> Keyed:
    """The same, with the keys of their tensors."""
    recorded = _recorded(metadata.get("args") or [], metadata.get("kwargs") or {})
    if "args" in metadata and recorded is not None:
        return Keyed(*recorded, {})
    restored = _Restored(_object(metadata.get("input_metadata")), saved, _object(metadata.get("tensor_details")))
    keys = restored.keys
    positional = [restored.value(f"arg_{index}") for index in range(_count_of(_POSITIONAL, keys))]
    named = {key.removesuffix(_CONTAINER): None for key in keys if key.startswith("kwarg_")}
    inside = _inside([*named], {key.removesuffix(_CONTAINER) for key in keys if key.endswith(_CONTAINER)})
    by_name = {key.removeprefix("kwarg_"): restored.value(key) for key in named if key not in inside}
    return Keyed(positional, by_name, restored.by_identity)


def _inside(keys: list[str], containers: set[str]) -> set[str]:
    """The keys of what lies in a container: sorted so, they follow that of the container."""
    found: set[str] = set()
    outer = None
    for key in sorted(keys, key=lambda key: key + "_"):
        if outer is not None and key.startswith(outer):
            found.add(key)
        elif key in containers:
            outer = key + "_"
    return found


def result(metadata: dict[str, Any], saved: Mapping[str, SavedTensor]) -> schema.Value:
    """What the call returned."""
    return keyed_result(metadata, saved).positional[0]


def keyed_result(metadata: dict[str, Any], saved: Mapping[str, SavedTensor]) -> Keyed:
    """The same, with the keys of its tensors."""
    recorded = _recorded([metadata.get("result")], {})
    if metadata.get("result") is not None and recorded is not None:
        return Keyed(*recorded, {})
    restored = _Restored(_object(metadata.get("output_metadata")), saved, _object(metadata.get("tensor_details")))
    keys = restored.keys
    count = _count_of(_RESULT, keys)
    if "result" in keys or f"result{_CONTAINER}" in keys or not count:
        return Keyed([restored.value("result")], {}, restored.by_identity)
    items = [restored.value(f"result_{index}") for index in range(count)]  # FlashInfer's tuple
    return Keyed([schema.Sequence("tuple", len(items), items)], {}, restored.by_identity)


def _count_of(pattern: re.Pattern[str], keys: list[str]) -> int:
    """How many values are numbered, from 0, by what the pattern finds in their keys."""
    return 1 + max((int(match[1]) for key in keys if (match := pattern.fullmatch(key))), default=-1)


_Arguments: TypeAlias = tuple[list[schema.Value], dict[str, schema.Value]]


def _recorded(positional: Any, named: Any) -> _Arguments | None:
    """Values as we described them; None where they are none of ours."""
    try:
        found = msgspec.convert((positional, named), _Arguments)
    except (msgspec.ValidationError, RecursionError):
        return None
    return None if too_deep([*found[0], *found[1].values()]) else found


class _Restored:
    """One side of a call: what its metadata says by key, and its tensors by key."""

    def __init__(self, flat: dict[str, Any], saved: Mapping[str, SavedTensor], details: dict[str, Any]) -> None:
        self.flat = flat
        self._left = MOST_ITEMS
        self.tensors: dict[str, schema.Tensor] = {key: tensor.described() for key, tensor in saved.items()}
        for key, detail in details.items():
            self._complete(key, detail, only_known=bool(saved))

    @property
    def by_identity(self) -> dict[int, str]:
        """The keys of the tensors by ``id`` of their descriptions, which are those in the values."""
        return {id(tensor): key for key, tensor in self.tensors.items()}

    @property
    def keys(self) -> list[str]:
        """All keys that say something of the side."""
        return [*self.flat, *self.tensors]

    def value(self, key: str, depth: int = 0) -> schema.Value:
        """The value that was flattened into keys beginning with ``key``."""
        if key in self.tensors:
            return self.tensors[key]
        container = self.flat.get(key + _CONTAINER)
        if not isinstance(container, dict) or depth > _DEEPEST:
            return self._nested(self.flat.get(key), depth)
        name, names = _text(container.get("type", "list")), container.get("keys")
        if isinstance(names, list):
            shown = [_text(item) for item in names[: self._granted(len(names))]]
            values = [self.value(f"{key}_{item}", depth + 1) for item in shown]
            return schema.Mapping(name, len(names), [repr(item) for item in shown], values)
        length = _count(container.get("length"))
        items = [self.value(f"{key}_{index}", depth + 1) for index in range(self._granted(length))]
        return schema.Sequence(name, length, items)

    def _granted(self, count: int) -> int:
        """How many of a container's items are put together: a few keys can name any number of them."""
        granted = min(count, self._left)
        self._left -= granted
        return granted

    def _nested(self, value: Any, depth: int) -> schema.Value:
        """A value that the metadata holds itself, with its items inside it as FlashInfer writes them."""
        if isinstance(value, list):  # as SGLang writes one inside a value that is no container
            value = {"type": "list", "length": len(value), "items": value}
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value if math.isfinite(value) and abs(value) < 2**63 else schema.Number(str(value)[:_LONGEST_TEXT])
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _text(value)
        if not isinstance(value, dict) or depth > _DEEPEST:
            return schema.Opaque(type(value).__name__)
        if isinstance(value.get("tensor_key"), str) and value["tensor_key"] in self.tensors:
            return self.tensors[value["tensor_key"]]
        if value.get("type") == "torch.Tensor":
            return _described(value) or schema.Opaque("Tensor")
        return self._items(value, depth) if isinstance(value.get("items"), list) else _other(value)

    def _items(self, value: dict[str, Any], depth: int) -> schema.Value:
        name, items = _text(value.get("type", "list")), value["items"]
        length = max(_count(value.get("length")), len(items))
        if name == "dict" and all(isinstance(item, dict) for item in items):
            keys = [_text(repr(item.get("key"))) for item in items]
            return schema.Mapping(name, length, keys, [self._nested(item.get("value"), depth + 1) for item in items])
        return schema.Sequence(name, length, [self._nested(item, depth + 1) for item in items])

    def _complete(self, key: str, detail: Any, *, only_known: bool) -> None:
        """FlashInfer notes beside the archive what it does not hold: the device, and a stride that was lost."""
        described = _described(detail)
        if described is not None and (key in self.tensors or not only_known):
            self.tensors[key] = described


def _described(detail: Any) -> schema.Tensor | None:
    """A tensor from the JSON of its metadata; None where that describes none."""
    try:
        found = msgspec.convert(detail, _Detail)
    except msgspec.ValidationError:
        return None
    try:
        stride = tuple(found.stride) if found.stride is not None else None
        layout = SavedTensor(tuple(found.shape), found.dtype, stride, 0, "", found.device)
    except UnreadableInput:
        return None
    tensor = layout.described()
    tensor.requires_grad = found.requires_grad
    return tensor


class _Detail(msgspec.Struct):
    shape: list[int]
    dtype: str
    device: str = ""
    stride: list[int] | None = None
    requires_grad: bool = False


def _other(value: dict[str, Any]) -> schema.Value:
    """An object that is no container: its class, and what was kept of its ``repr``."""
    name = _text(value.get("type", "dict"))
    if name == "enum":
        return schema.Opaque(_text(value.get("name", "")).partition(".")[0], _text(value.get("name", "")))
    shown = value.get("repr", value.get("value"))
    if name.startswith("torch."):
        name = name.removeprefix("torch.")
    return schema.Opaque(name, None if shown is None else _text(shown))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return plain_text(value if isinstance(value, str) else str(value))[:_LONGEST_TEXT]


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else 0
