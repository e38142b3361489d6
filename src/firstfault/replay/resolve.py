"""What a dump names → the function itself.

    {"kind": "operator", "name": "sgl_kernel::rmsnorm"}                  torch.ops.sgl_kernel.rmsnorm
    {"kind": "function", "module": "kernels", "qualname": "rmsnorm"}     kernels.rmsnorm
    "srt.layers.rotary.apply"  (a dump of SGLang's)                      sglang.srt.layers.rotary.apply

Other recorders' dumps hold a name alone, of which they have taken a prefix. A dump names code that is then run: what
lies in Python's own library is refused, and a name never leads through one module into another.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from firstfault.capture.boundary import function_of
from firstfault.replay import definitions
from firstfault.replay.errors import NotRun

_PREFIXES = ("", "sglang.", "sgl_kernel.")
_OPERATORS = {"sglang.custom_op.": "sglang", "diffusion.custom_op.": "sglang"}
_TRUSTED_BY_NOBODY = "it is part of Python's own library, which is not called for a dump"
SAY_WHICH = "name the function with --function MODULE:NAME"


def named(text: str) -> Callable[..., Any]:
    """What ``MODULE:NAME`` or ``FILE.py:NAME`` means, as a user types it.

    Raises:
        NotRun: there is none.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise NotRun(f"{text!r} does not name a function; accepted: MODULE:NAME or FILE.py:NAME")
    if where.startswith("torch.ops."):
        return _operator(f"{where.removeprefix('torch.ops.')}::{name}", None)
    if where.endswith(".py"):
        return _callable(_descend(definitions.load(Path(where).resolve(), name.partition(".")[0]), name), text)
    if "" not in sys.path:
        sys.path.insert(0, "")
    return _callable(_descend(_imported(where), name), text)


def function(reference: Mapping[str, Any], op: str) -> Callable[..., Any]:
    """What a dump refers to.

    Args:
        reference: the dump's ``function``; empty in dumps of others.
        op: the name that the call was recorded under.

    Raises:
        NotRun: it cannot be found.
    """
    kind = reference.get("kind")
    if kind == "operator":
        return _registered(reference)
    if kind in ("function", "triton"):
        return _callable(by_reference(reference), op)
    if kind == "unknown" and reference.get("why"):
        raise NotRun(f"{op} cannot be found: {reference['why']}; {SAY_WHICH}")
    return _by_op(op, str(reference.get("module") or ""))


def by_reference(reference: Mapping[str, Any]) -> Any:
    """The function or class that a reference means.

    Raises:
        NotRun: it cannot be found.
    """
    module, qualname = str(reference.get("module") or ""), str(reference.get("qualname") or "")
    if "<locals>" in qualname:
        raise NotRun(f"{qualname} is defined inside another function, where it cannot be found; {SAY_WHICH}")
    if "<lambda>" in qualname or not qualname:
        raise NotRun(f"it is a function without a name ({qualname or 'none'} in {module or 'no module'}); {SAY_WHICH}")
    file = reference.get("file")
    if module in definitions.OF_THE_PROGRAM:
        if not file:
            raise NotRun(f"{qualname} was defined in no file; {SAY_WHICH}")
        return _descend(definitions.load(Path(str(file)), qualname.partition(".")[0]), qualname)
    try:
        loaded = _imported(module, file)
    except NotRun:
        if not file or not Path(str(file)).is_file():
            raise
    else:
        return _renamed(loaded, qualname) or _descend(loaded, qualname)
    return _descend(definitions.load(Path(str(file)), qualname.partition(".")[0]), qualname)


def _renamed(module: ModuleType, qualname: str) -> Any:
    """A class that its module has under another name than its own; None where there is none."""
    if hasattr(module, qualname.partition(".")[0]):
        return None
    classes = (value for value in list(vars(module).values()) if isinstance(value, type))
    own = (module.__name__, qualname)
    return next((found for found in classes if (found.__module__, found.__qualname__) == own), None)


def _registered(reference: Mapping[str, Any]) -> Callable[..., Any]:
    """An operator, after what registers it has been loaded if it is not there yet."""
    name, overload = str(reference.get("name", "")), reference.get("overload")
    try:
        return _operator(name, overload)
    except NotRun:
        if reference.get("qualname"):
            by_reference(reference)
        elif reference.get("module") not in (None, "", "__main__"):
            _imported(str(reference["module"]), reference.get("file"))
        else:
            _try_import(name.partition("::")[0])
    return _operator(name, overload)


def _operator(name: str, overload: Any) -> Callable[..., Any]:
    namespace, _, op = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), op)
        found: Any = packet if overload is None else getattr(packet, str(overload) or "default")
    except AttributeError:
        raise NotRun(f"there is no operator {name} here; import what registers it with --import MODULE") from None
    return found  # type: ignore[no-any-return]


def _by_op(op: str, module: str) -> Callable[..., Any]:
    """What the name of a call means where the dump has no more than that."""
    if module and module != "__main__":
        return _callable(_descend(_imported(module), op), op)
    for prefix, namespace in _OPERATORS.items():
        if op.startswith(prefix):
            _try_import("sglang.srt.utils.custom_op")
            return _operator(f"{namespace}::{op.removeprefix(prefix)}", None)
    words = op.removeprefix("torch.ops.").split(".")
    if op.startswith("torch.ops.") or (len(words) == 3 and words[0] in ("aten", "prims")):
        return _registered({"name": f"{words[0]}::{words[1]}", "overload": words[2] if len(words) > 2 else None})
    for prefix in _PREFIXES:
        found = _longest(prefix + op)
        if found is not None:
            return _callable(found, op)
    raise NotRun(f"no function {op} can be found here; {SAY_WHICH}")


def _longest(dotted: str) -> Any:
    """What a dotted name means, by the longest module that can be imported; None for nothing."""
    words = dotted.split(".")
    for length in range(len(words) - 1, 0, -1):
        module = _try_import(".".join(words[:length]))
        if module is not None:
            try:
                return _descend(module, ".".join(words[length:]))
            except NotRun:
                return None
    return None


def _try_import(module: str) -> ModuleType | None:
    try:
        return _imported(module)
    except NotRun:
        return None


def _imported(module: str, file: Any = None) -> ModuleType:
    """A module by its name, from where its file lay if that is not on the path.

    Raises:
        NotRun: it cannot be imported.
    """
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise NotRun(f"{module} is refused: {_TRUSTED_BY_NOBODY}")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        root = definitions.root_of(module, file)
        if root is None or root in sys.path or error.name is None or not module.startswith(error.name):
            raise NotRun(f"{module} cannot be imported ({error}); install it, or {SAY_WHICH}") from error
        sys.path.append(root)
    except Exception as error:  # a module may raise anything while it is imported
        raise NotRun(f"importing {module} raised {type(error).__name__}: {error}") from error
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise NotRun(f"importing {module} raised {type(error).__name__}: {error}") from error


def _descend(module: ModuleType, qualname: str) -> Any:
    """An attribute of a module, or of classes in it.

    Raises:
        NotRun: there is none, or it leads into another module.
    """
    found: Any = module
    for word in qualname.split("."):
        try:
            found = getattr(found, word)
        except AttributeError:
            raise NotRun(f"{module.__name__} has no {qualname} any more; {SAY_WHICH}") from None
        if isinstance(found, ModuleType):
            raise NotRun(f"{module.__name__}.{qualname} leads through a module; {SAY_WHICH}")
    if str(getattr(found, "__module__", "")).partition(".")[0] in sys.stdlib_module_names:
        raise NotRun(f"{qualname} of {module.__name__} is refused: {_TRUSTED_BY_NOBODY}")
    return found


def _callable(found: Any, op: str) -> Callable[..., Any]:
    if not callable(found) and not hasattr(found, "fn"):
        raise NotRun(f"{op} is no function here, but a {type(found).__name__}; {SAY_WHICH}")
    return function_of(found)
