"""Every ``torch.nn.Module`` call, under the module's qualified name.

    Qwen3ForCausalLM.model.layers.0.self_attn.q_proj

Patched is ``Module.__call__``: forward hooks would be seen by the program, change how modules dispatch,
and cannot tell an exception from a call that has not come back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from firstfault.capture import recorder

REQUIRES = "torch"
TARGET = "nn_module"

_original: Callable[..., Any] | None = None
_names: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()


def install() -> None:
    """Make every module's call a boundary; a second time does nothing."""
    global _original
    if _original is not None:
        return
    _original = torch.nn.Module.__call__
    torch.nn.Module.__call__ = _recorded(_original)  # type: ignore[method-assign]


def uninstall() -> None:
    """Put the original back."""
    global _original
    if _original is not None:
        torch.nn.Module.__call__ = _original  # type: ignore[method-assign]
        _original = None


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    is_compiling = torch.compiler.is_compiling
    begin = recorder.begin
    caller = sys._getframe

    @functools.wraps(original)
    def call_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        call = begin(_names.get(self) or _name(self), TARGET, args, kwargs, caller(1))
        if call is None:
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            call.raised(error)
            raise
        call.returned(result)
        return result

    return call_module


def _name(module: torch.nn.Module) -> str:
    """The module's name: it is the root of its own tree unless a root called before it has named it."""
    root = type(module).__name__
    _names[module] = root
    for path, inner in module.named_modules():
        if path:
            _names[inner] = f"{root}.{path}"
    return root
