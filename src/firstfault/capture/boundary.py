"""Kernel API boundaries: functions whose calls are recorded.

    @debug_kernel_api
    def rmsnorm(x, weight, eps): ...

At level 0 every function here gives back the very object that it was given. Under ``torch.compile`` a
boundary steps aside: the function itself is traced, and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

import torch

from firstfault import settings
from firstfault.capture import recorder

F = TypeVar("F", bound=Callable[..., Any])

WRAPPED = "_debug_kernel_wrapped"
"""The mark of a boundary, shared with SGLang's logger so that neither wraps what the other has."""

_STRIPPED_PREFIXES = ("sglang.", "sgl_kernel.")


@overload
def debug_kernel_api(func: F, *, op_name: str | None = None) -> F: ...


@overload
def debug_kernel_api(func: None = None, *, op_name: str | None = None) -> Callable[[F], F]: ...


def debug_kernel_api(func: Callable[..., Any] | None = None, *, op_name: str | None = None) -> Any:
    """Make a function a boundary; usable bare, or with a name of its own for it.

    Args:
        func: the function; when left out, a decorator is returned.
        op_name: the name that calls are recorded under; inferred from module and qualified name otherwise.

    Returns:
        ``func`` itself at level 0 or when it is a boundary already, else the boundary.
    """
    if func is None:
        return lambda later: debug_kernel_api(later, op_name=op_name)
    if not enabled() or getattr(func, WRAPPED, False):
        return func
    return wrap(func, op_name or infer_name(func))


def maybe_wrap_debug_kernel(func: Callable[..., Any] | None = None, op_name: str | None = None) -> Any:
    """``debug_kernel_api`` for code that exports many kernels and wraps them in a loop."""
    return debug_kernel_api(func, op_name=op_name)


def wrap_method_with_debug_kernel_once(
    obj: Any, method_name: str, *, op_name: str, marker_attr: str | None = None
) -> Any:
    """Make one method of an object a boundary, once.

    Args:
        obj: the object; returned.
        method_name: the method's name.
        op_name: the name that its calls are recorded under.
        marker_attr: attribute that marks ``obj`` as done, ``_debug_kernel_<method>_wrapped`` if left out.
    """
    marker = marker_attr or f"_debug_kernel_{method_name}_wrapped"
    if enabled() and not getattr(obj, marker, False):
        setattr(obj, method_name, debug_kernel_api(getattr(obj, method_name), op_name=op_name))
        setattr(obj, marker, True)
    return obj


def enabled() -> bool:
    """Whether this process records at all."""
    return settings.current().level > settings.Level.OFF


def wrap(func: Callable[..., Any], name: str, target: str = "boundary") -> Callable[..., Any]:
    """The boundary around ``func``, whatever the level."""
    first = 1 if _takes_self(func) else 0
    is_compiling = torch.compiler.is_compiling
    begin = recorder.begin
    caller = sys._getframe

    @functools.wraps(func)
    def boundary(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return func(*args, **kwargs)
        call = begin(name, target, args[first:] if first else args, kwargs, caller(1))
        if call is None:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            call.raised(error)
            raise
        call.returned(result)
        return result

    setattr(boundary, WRAPPED, True)
    return boundary


def infer_name(func: Callable[..., Any]) -> str:
    """Module and qualified name, without ``sglang.``, ``sgl_kernel.`` and ``<locals>``.

    A function of ``__main__`` gets its file's name in place of the module's.
    """
    qualname = getattr(func, "__qualname__", getattr(func, "__name__", type(func).__name__))
    qualname = qualname.replace("<locals>.", "")
    module = getattr(func, "__module__", None) or ""
    prefix = next((prefix for prefix in _STRIPPED_PREFIXES if module.startswith(prefix)), "")
    module = module.removeprefix(prefix)
    if module in ("", "__main__", "builtins"):
        module = _file_stem(func)
    return f"{module}.{qualname}" if module else qualname


def _file_stem(func: Callable[..., Any]) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(func))
    except TypeError:
        return ""
    return Path(path).stem.strip("<>") if path else ""


def _takes_self(func: Callable[..., Any]) -> bool:
    """Whether the first argument is an object or class that the function is a method of."""
    try:
        first = next(iter(inspect.signature(func).parameters), None)
    except (TypeError, ValueError):
        return False
    return first in ("self", "cls")
