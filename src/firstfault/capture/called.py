"""What was called, and in which state, told so that another process can make the same call.

    {"function": {"kind": "function", "module": "kernels", "qualname": "rmsnorm", "file": "/src/kernels.py"},
     "modes": {"grad": true, "default_dtype": "torch.float32", …},
     "objects": [{"path": [1], "class": {"module": "kernels", "qualname": "Mode"}, "member": "CAUSAL"}]}

Only level 10 asks for it: it goes into ``metadata.json`` of a dump, beside the arguments.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import inspect
import re
import sys
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from firstfault.capture import archive, describe
from firstfault.capture.describe import PathKey, Walk
from firstfault.record import dumped, schema

Reference = dict[str, Any]

MOST_OBJECTS = 10_000
"""Objects of one call that are told of."""
_REGISTERED_AT = re.compile(r"^debug: registered at (.+):\d+$", re.MULTILINE)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_TORCHS = ("_VariableFunctionsClass.", "_VariableFunctions.")
_SCALARS = (int, float, str, complex)


def told(func: Any, owner: Any, walk: Walk, *, modules: bool) -> dict[str, Any]:
    """What the metadata of a dump says of a call beside its arguments.

    Args:
        func: the function behind the boundary.
        owner: the object that it was called as a method of; None for none.
        walk: the walk over the arguments; tensors that objects hold are added to what it found.
        modules: whether the state of modules and other objects is saved, with their tensors.
    """
    saved = _Objects(walk, modules=modules)
    for path, value in [*walk.objects]:
        saved.add(path, value)
    if owner is not None and not isinstance(owner, type):
        saved.add((dumped.OWNER,), owner)
    return {"function": function(func, owner), "modes": modes(), "objects": saved.found}


# --- functions


def function(func: Any, owner: Any = None) -> Reference:
    """How a function is found again; ``{"kind": "unknown"}`` for what has no name to find it by."""
    try:
        if func is None:
            return {"kind": "unknown"}
        if hasattr(func, "_qualified_op_name") or hasattr(func, "_schema"):
            return _operator(func)
        if owner is not None and not isinstance(owner, type):
            return {"kind": "method", "name": str(func.__name__)} | of_class(type(owner))
        if hasattr(func, "arg_names") and hasattr(func, "fn"):
            return {"kind": "triton"} | _by_name(func.fn)
        return {"kind": "function"} | _by_name(inspect.unwrap(func))
    except Exception as error:  # of a callable that answers to nothing
        return {"kind": "unknown", "why": f"{type(error).__name__} on looking at it"}


def _by_name(func: Any) -> Reference:
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None)
    if not isinstance(name, str):
        return {"kind": "unknown", "why": f"it is a {describe.class_name(func)}, which has no name"}
    module = getattr(func, "__module__", None)
    owner = getattr(func, "__objclass__", None)
    if owner is not None and issubclass(torch.Tensor, owner):
        return {"module": "torch", "qualname": f"Tensor.{func.__name__}"}
    if name.startswith(_TORCHS):
        return {"module": "torch", "qualname": name.rpartition(".")[2]}
    found = {"module": str(module or ""), "qualname": name}
    code = getattr(func, "__code__", None)
    return found | ({"file": code.co_filename} if code is not None else {})


@functools.lru_cache(maxsize=4096)
def _operator(operator: Any) -> Reference:
    """An operator by its qualified name, and the file that it is registered in if that is Python."""
    schema_of = getattr(operator, "_schema", None)  # of one overload; a packet has several
    name = schema_of.name if schema_of is not None else operator._qualified_op_name
    found = {"kind": "operator", "name": name, "overload": schema_of.overload_name if schema_of is not None else None}
    return found | _registration(name)


def _registration(name: str) -> Reference:
    from firstfault.capture import custom_op

    behind = custom_op.function_behind(name)
    if behind is not None:
        return _by_name(inspect.unwrap(behind))
    match = _REGISTERED_AT.search(torch._C._dispatch_dump(name))
    if match is None or not match[1].endswith(".py"):
        return {}
    return {"module": next((name for name in list(sys.modules) if _file_of(name) == match[1]), ""), "file": match[1]}


def _file_of(module: str) -> str | None:
    """The file of an imported module; one that is imported when it is first looked into stays as it is."""
    try:
        found = vars(sys.modules[module]).get("__file__")
    except (KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


# --- the state that a call runs in


def modes() -> dict[str, Any]:
    """What a result depends on besides the arguments."""
    autocast = {
        device: str(torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    }
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": autocast,
        "default_dtype": str(torch.get_default_dtype()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


# --- objects among the arguments


def of_class(kind: type) -> Reference:
    """How a class is found again."""
    found = {"module": str(kind.__module__), "qualname": str(kind.__qualname__)}
    file = _file_of(found["module"])
    return found | ({"file": file} if file else {})


class _Objects:
    """The objects of one call, each told of once."""

    def __init__(self, walk: Walk, *, modules: bool) -> None:
        self._walk = walk
        self._modules = modules
        self._known: dict[int, tuple[PathKey, ...]] = {}
        self.found: list[dict[str, Any]] = []

    def add(self, path: tuple[PathKey, ...], value: Any) -> None:
        """Tell of one object, and of those in it where its state is saved."""
        if len(self.found) >= MOST_OBJECTS or (isinstance(value, _SCALARS) and not isinstance(value, enum.Enum)):
            return
        told: dict[str, Any] = {"path": path}
        self.found.append(told)
        if id(value) in self._known:
            told["same"] = self._known[id(value)]
            return
        self._known[id(value)] = path
        if isinstance(value, type):
            told["type"] = of_class(value)
        elif isinstance(value, _FUNCTIONS):
            told["function"] = function(value)
        elif isinstance(value, torch.Generator):
            state = base64.b64encode(archive.raw(value.get_state())).decode()
            told["generator"] = {"device": str(value.device), "state": state}
        elif isinstance(value, enum.Enum) or hasattr(type(value), "__members__"):  # which those of C++ have too
            told |= {"class": of_class(type(value)), "member": value.name}
        else:
            told["class"] = of_class(type(value))
            self._add_state(told, path, value)

    def _add_state(self, told: dict[str, Any], path: tuple[PathKey, ...], value: Any) -> None:
        """The attributes of an object that is no container and no tensor: always where it has none."""
        if isinstance(value, (torch.Tensor, dict, list, tuple, set, frozenset)) or dataclasses.is_dataclass(value):
            return
        if type(value).__module__.split(".")[0] in ("builtins", "numpy", "torch") and not _is_module(value):
            return
        attributes = getattr(value, "__dict__", None)
        if attributes is None or (attributes and not self._modules):
            return
        told["state"] = self._attributes(path, dict(attributes), hidden=_is_module(value))
        told["is_module"] = _is_module(value)

    def _attributes(self, path: tuple[PathKey, ...], attributes: dict[str, Any], *, hidden: bool) -> schema.Mapping:
        """Attributes as they are described; of a module without hooks and what else torch keeps in it."""
        kept = {name: item for name, item in attributes.items() if not (hidden and _is_torchs_own(name))}
        inner = Walk(dump=True)
        inner.path = [*path]
        described = []
        for name, item in kept.items():
            inner.path.append(name)
            described.append(describe.describe(item, inner))
            inner.path.pop()
        self._walk.found += inner.found
        self._walk.cut += inner.cut
        for place, item in inner.objects:
            self.add(place, item)
        return schema.Mapping("dict", len(kept), list(kept), described, fields=True)


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def _is_torchs_own(name: str) -> bool:
    """Whether an attribute of every module, other than its parameters, buffers and modules."""
    return name in _OF_EVERY_MODULE


_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
}
