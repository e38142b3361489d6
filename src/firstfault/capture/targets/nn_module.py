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
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from firstfault.capture import coverage
from firstfault.capture.patches import Patches
from firstfault.record.plain import plain_text

if TYPE_CHECKING:
    import torch

DISTRIBUTION = "torch"
TRIED = ("2.11", "2.13")
_COMPILER = "torch._dynamo.callback"
REQUIRES = ("torch", _COMPILER)
OPT_IN = False
TARGET = "nn_module"

_NOT_SEEN = "modules inside a region that torch.compile runs are not recorded one by one"
_MOST_FRUITLESS = 16
"""Searches of the known trees for a module that turned out to be in none; beyond them there is one a second.

A program may make a module at each step, and naming a large tree takes milliseconds.
"""


class _Name(NamedTuple):
    name: str
    root: int
    """``id`` of the module at the top of the tree that it was named in."""
    alive: weakref.ref[torch.nn.Module]


_patches = Patches()
_names: dict[int, _Name] = {}
"""By ``id``: a program's modules may be unhashable, or compare in ways of their own."""
_fruitless = 0
_next_search = 0.0


def install(module: ModuleType) -> None:
    """Make every module's call a boundary, and count the regions that are compiled, inside which none is called."""
    if module.__name__ == _COMPILER:
        handler = module.CompilationCallbackHandler
        _patches.put(handler, "run_start_callbacks", _counted(handler.run_start_callbacks))
        return
    _patches.put(module.nn.Module, "__call__", _recorded(module.nn.Module.__call__))


uninstall = _patches.undo


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    from firstfault.capture import recorder

    is_compiling = torch.compiler.is_compiling
    compiler_watches = torch._C._dynamo.eval_frame.get_eval_frame_callback
    begin = recorder.begin
    names = _names
    patches = _patches

    @functools.wraps(original)
    def call_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not patches.active:
            return original(self, *args, **kwargs)
        if compiler_watches():
            recorder.missed("compiled", _NOT_SEEN)
            return original(self, *args, **kwargs)
        named = names.get(id(self))
        name = named.name if named is not None else _name(self)
        call = begin(name, TARGET, args, kwargs, 0, None, (original, self))
        if call is None:
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
            call.returned(result)
        except BaseException as error:
            call.raised(error)
            raise
        return result

    _pass_over(call_module)
    return call_module


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    """What Dynamo runs at the start of each compilation. A callback of ours would be gone with its next reset."""
    from firstfault.capture import recorder

    @functools.wraps(original)
    def run_start_callbacks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _patches.active:
            recorder.missed("compiled", _NOT_SEEN)
        return original(self, *args, **kwargs)

    return run_start_callbacks


def _pass_over(function: Any) -> None:
    """Tell Dynamo that a compiled region does not begin here: it begins at ``forward``, as it would without us.

    What ``torch._dynamo.eval_frame.skip_code`` does, which takes two seconds to import.
    """
    import torch

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
            if named is None:
                coverage.counted(TARGET)
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


def _forget(
    number: int,
    alive: weakref.ref[torch.nn.Module],
    names: dict[int, _Name] = _names,  # at the interpreter's end a module has no names any more
) -> None:
    named = names.get(number)
    if named is not None and named.alive is alive:
        del names[number]
