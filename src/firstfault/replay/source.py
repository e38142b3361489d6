"""Values as they were described → Python that makes them.

Sequence("tuple", 2, [Tensor(…), Opaque("dtype", "torch.float16")])  →  (t["arg_0"], torch.float16)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from firstfault.read.formats.values import unquoted
from firstfault.record import schema
from firstfault.replay import reprs
from firstfault.replay.errors import NotRun
from firstfault.replay.rebuild import Path, shown

_CONTAINERS = {
    "list": ("[", "]"),
    "tuple": ("(", ",)"),
    "set": ("{*(", ",)}"),
    "frozenset": ("frozenset([", "])"),
    "deque": ("collections.deque([", "])"),
    "Size": ("torch.Size([", "])"),
}
_LITERAL = re.compile(r"(slice|range)\((?:None|-?\d+)(?:, (?:None|-?\d+)){1,2}\)")
_SHORT_NAME = re.compile(r"[A-Za-z0-9_.:/+-]{0,64}")
HIDDEN = "x"


class Source:
    """Writes the values of one call.

    Attributes:
        imports: by the name that the program uses, the module and qualified name, and the file, of each class.
        hidden: how many texts were replaced.
    """

    def __init__(
        self, key_of: Callable[[schema.Tensor], str | None], objects: Mapping[Path, Mapping[str, Any]], *, private: bool
    ) -> None:
        """
        Args:
            key_of: the key of a tensor by its description.
            objects: what the dump says of objects, by path.
            private: whether texts that could be a user's are replaced.
        """
        self._key_of = key_of
        self._objects = objects
        self._private = private
        self.imports: dict[str, Mapping[str, Any]] = {}
        self.hidden = 0

    def value(self, value: schema.Value, path: Path) -> str:
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
            return f"complex({value.text!r})" if "j" in value.text else f"float({value.text!r})"
        if isinstance(value, schema.Opaque):
            return self._opaque(value, path)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, schema.Text):
            if not self._private:
                raise self._cut(f"{value.length} characters, of which only {len(value.start)}", path)
            return self._text(HIDDEN * value.length)
        return repr(value)

    def function(self, reference: Mapping[str, Any]) -> str:
        """A function or class that is imported."""
        name = re.sub(r"\W", "_", f"{reference.get('module')}_{reference.get('qualname')}")
        self.imports[name] = reference
        return name

    def _text(self, value: str) -> str:
        if self._private and not _SHORT_NAME.fullmatch(value):
            self.hidden += 1
            return repr(HIDDEN * len(value))
        return "DEVICE" if re.fullmatch(r"cuda(:\d+)?", value) else repr(value)

    def _tensor(self, value: schema.Tensor, path: Path) -> str:
        key = self._key_of(value)
        if key is None:
            raise NotRun(f"the tensor {shown(path)} is not in the dump")
        return f"t[{key!r}]"

    def _sequence(self, value: schema.Sequence, path: Path) -> str:
        if value.length != len(value.items):
            raise self._cut(f"{value.length} items, of which only {len(value.items)}", path)
        items = ", ".join(self.value(item, (*path, index)) for index, item in enumerate(value.items))
        told = self._objects.get(path, {})
        if "class" in told and told["class"].get("module") != "collections":
            return f"{self.function(told['class'])}._make([{items}])"
        begin, end = _CONTAINERS.get(value.name, _CONTAINERS["tuple"])
        return begin + items + (end if items or not end.startswith(",") else end[1:])

    def _mapping(self, value: schema.Mapping, path: Path) -> str:
        if value.length != len(value.keys):
            raise self._cut(f"{value.length} entries, of which only {len(value.keys)}", path)
        keys = [repr(key) if value.fields else _key(key, path) for key in value.keys]
        steps = [key if value.fields else unquoted(key) for key in value.keys]
        items = [self.value(item, (*path, step)) for step, item in zip(steps, value.values, strict=True)]
        body = "{" + ", ".join(f"{key}: {item}" for key, item in zip(keys, items, strict=True)) + "}"
        if not value.fields:
            return f"collections.OrderedDict({body})" if value.name == "OrderedDict" else body
        told = self._objects.get(path, {})
        if "class" not in told:
            raise NotRun(f"{shown(path)} is a {value.name}, a class that the dump does not say where to find")
        return f"made({self.function(told['class'])}, {body})"

    def _opaque(self, value: schema.Opaque, path: Path) -> str:
        text = value.repr or ""
        if value.name in reprs.TORCHS_NAMES and reprs.OF_TORCH.fullmatch(text):
            return text
        if value.name == "dtype" and (match := reprs.OF_TRITON.fullmatch(text)):
            return self.function({"module": "triton.language", "qualname": match[1]})
        if value.name == "device":
            match = reprs.DEVICE.fullmatch(text)
            return "torch.device(DEVICE)" if match is None or match[1] != "cpu" else 'torch.device("cpu")'
        if value.name == "bytes" and not value.cut:
            return repr(bytes(len(ast.literal_eval(text)))) if self._private else text
        if value.name == "ellipsis":
            return "..."
        if _LITERAL.fullmatch(text):
            return text
        return self._object(value, path)

    def _object(self, value: schema.Opaque, path: Path) -> str:
        told = self._objects.get(path, {})
        if "same" in told:
            return self._object(value, tuple(told["same"]))
        if "member" in told:
            return f"{self.function(told['class'])}.{told['member']}"
        if "function" in told and told["function"].get("kind") == "function":
            return self.function(told["function"])
        if "type" in told:
            return self.function(told["type"])
        if "state" not in told:
            raise NotRun(f"{shown(path)} is a {value.name}, of which only a description was saved")
        return self.stateful(told, path)

    def stateful(self, told: Mapping[str, Any], path: Path) -> str:
        """An object with the attributes that were saved."""
        state: schema.Mapping = told["state"]
        items = []
        for name, item in zip(state.keys, state.values, strict=True):
            try:
                items.append(f"{name!r}: {self.value(item, (*path, name))}")
            except NotRun:
                continue  # what needs it will say so
        maker = "module" if told.get("is_module") else "made"
        return f"{maker}({self.function(told['class'])}, {{{', '.join(items)}}})"

    def _cut(self, what: str, path: Path) -> NotRun:
        return NotRun(f"{shown(path)} has {what} were saved")


def _key(text: str, path: Path) -> str:
    if reprs.OF_TORCH.fullmatch(text):
        return text
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise NotRun(f"{shown(path)} has a key {text}, of which only a description was saved") from None
    return text
