"""Every ``torch.nn.Module`` call, under the module's qualified name.

    Qwen3ForCausalLM.model.layers.0.self_attn.q_proj

Patched is ``Module.__call__``: forward hooks would be seen by the program, change how modules dispatch,
and cannot tell an exception from a call that has not come back.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from firstfault.capture import recorder
from firstfault.record.plain import plain_text

REQUIRES = "torch"
TARGET = "nn_module"

_MOST_FRUITLESS = 16
"""Searches of the known trees for a module that turned out to be in none; beyond them there is one a second.

A program may make a module at each step, and naming a large tree takes milliseconds.
"""


class _Name(NamedTuple):
    name: str
    root: int
    """``id`` of the module at the top of the tree that it was named in."""
    alive: weakref.ref[torch.nn.Module]


_original: Callable[..., Any] | None = None
_installed: Callable[..., Any] | None = None
_names: dict[int, _Name] = {}
"""By ``id``: a program's modules may be unhashable, or compare in ways of their own."""
_fruitless = 0
_next_search = 0.0
_compiled_noted = False


def install() -> None:
    """Make every module's call a boundary; a second time does nothing."""
    global _original, _installed
    if _original is not None:
        return
    _original = torch.nn.Module.__call__
    _installed = torch.nn.Module.__call__ = _recorded(_original)  # type: ignore[method-assign]


def uninstall() -> None:
    """Put the original back; where another has patched on top of us, that stays and we only pass on."""
    global _original, _installed
    if torch.nn.Module.__call__ is _installed and _original is not None:
        torch.nn.Module.__call__ = _original  # type: ignore[method-assign]
    _original = _installed = None


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    is_compiling = torch.compiler.is_compiling
    compiler_watches = torch._C._dynamo.eval_frame.get_eval_frame_callback
    begin = recorder.begin
    names = _names

    @functools.wraps(original)
    def call_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or call_module is not _installed:
            return original(self, *args, **kwargs)
        if compiler_watches():
            _note_compiled()
            return original(self, *args, **kwargs)
        named = names.get(id(self))
        name = named.name if named is not None else _name(self)
        call = begin(name, TARGET, args, kwargs)
        if call is None:
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            call.raised(error)
            raise
        call.returned(result)
        return result

    _pass_over(call_module)
    return call_module


def _note_compiled() -> None:
    """Say once that modules which run inside a compiled region are not seen one by one."""
    global _compiled_noted
    if not _compiled_noted:
        _compiled_noted = True
        recorder.note("compiled", "modules inside a region that torch.compile runs are not recorded one by one")


def _pass_over(function: Any) -> None:
    """Tell Dynamo that a compiled region does not begin here: it begins at ``forward``, as it would without us.

    What ``torch._dynamo.eval_frame.skip_code`` does, which takes two seconds to import.
    """
    dynamo = torch._C._dynamo.eval_frame
    strategy = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT)
    dynamo.set_code_exec_strategy(function.__code__, strategy)


def _name(module: torch.nn.Module) -> str:
    """The name of a module that has none yet.

    It may have been added to a tree that is known; else it is the root of a tree of its own.
    """
    global _fruitless, _next_search
    try:
        if _fruitless < _MOST_FRUITLESS or time.monotonic() >= _next_search:
            _next_search = time.monotonic() + 1
            for root in _roots():
                _name_tree(root)
            if (found := _names.get(id(module))) is not None:
                return found.name
            _fruitless += bool(_names)
        _name_tree(module)
        return _names[id(module)].name
    except Exception:  # a module that is no whole module; the program's own call will say so
        return type(module).__name__


def _roots() -> list[torch.nn.Module]:
    alive = [named.alive() for number, named in list(_names.items()) if named.root == number]
    return [root for root in alive if root is not None]


def _name_tree(root: torch.nn.Module) -> None:
    """Name the modules of a tree, but for those that an independent tree has named.

    Modules that were called by themselves before the root was are part of it from now on.
    """
    known = _names.get(id(root))
    top = known.name if known is not None else type(root).__name__
    tree = list(_tree(root))
    inside = {id(module) for _, module in tree}
    for path, module in tree:
        named = _names.get(id(module))
        if named is None or (named.root in inside and named.root != id(root)):
            name = f"{top}.{path}" if path else top
            _names[id(module)] = _Name(
                plain_text(name), id(root), weakref.ref(module, functools.partial(_forget, id(module)))
            )


def _tree(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Each module once, with its path from ``root``, in the order of ``named_modules``."""
    seen: set[int] = set()
    left = [("", root)]
    while left:
        path, module = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        inner = [(name, child) for name, child in module._modules.items() if child is not None]
        left += [(f"{path}.{name}" if path else name, child) for name, child in reversed(inner)]


def _forget(number: int, alive: weakref.ref[torch.nn.Module]) -> None:
    named = _names.get(number)
    if named is not None and named.alive is alive:
        del _names[number]
