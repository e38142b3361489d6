"""Kernel API boundaries: functions whose calls are recorded.

    @debug_kernel_api
    def rmsnorm(x, weight, eps): ...

At level 0 every function here gives back the very object that it was given. Under ``torch.compile`` a
boundary steps aside: the function itself is traced, and nothing else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

import torch

from firstfault import settings
from firstfault.capture import compiled, contracts, coverage, recorder
from firstfault.errors import tell
from firstfault.record.plain import plain_text

F = TypeVar("F", bound=Callable[..., Any])

TARGET = "boundary"
"""What boundaries are attached by that the program has made itself."""

WRAPPED = "_debug_kernel_wrapped"
"""The mark of a boundary, shared with SGLang's logger so that neither wraps what the other has."""

_STRIPPED_PREFIXES = ("sglang.", "sgl_kernel.")
_functions: WeakKeyDictionary[Callable[..., Any], Callable[..., Any]] = WeakKeyDictionary()
"""The function behind each boundary of ours. The mark cannot tell: ``functools.wraps`` copies it outwards."""


@overload
def debug_kernel_api(func: F, *, op_name: str | None = None, target: str = TARGET) -> F: ...


@overload
def debug_kernel_api(func: None = None, *, op_name: str | None = None, target: str = TARGET) -> Callable[[F], F]: ...


def debug_kernel_api(
    func: Callable[..., Any] | None = None, *, op_name: str | None = None, target: str = TARGET
) -> Any:
    """Make a function a boundary; usable bare, or with a name of its own for it.

    Args:
        func: the function; when left out, a decorator is returned.
        op_name: the name that calls are recorded under; inferred from module and qualified name otherwise.
        target: what attaches the boundary.

    Returns:
        ``func`` itself at level 0 or when it is a boundary already, else the boundary.
    """
    if func is None:
        return lambda later: debug_kernel_api(later, op_name=op_name, target=target)
    if isinstance(func, (staticmethod, classmethod)):
        inner = debug_kernel_api(func.__func__, op_name=op_name, target=target)
        return func if inner is func.__func__ else type(func)(inner)
    if not enabled() or getattr(func, WRAPPED, False):
        return func
    if (reason := _not_a_boundary(func)) is not None:
        tell(f"{op_name or infer_name(func)} is not recorded: {reason}")
        return func
    return wrap(func, op_name or infer_name(func), target)


def maybe_wrap_debug_kernel(
    func: Callable[..., Any] | None = None, op_name: str | None = None, *, target: str = TARGET
) -> Any:
    """``debug_kernel_api`` for code that exports many kernels and wraps them in a loop."""
    return debug_kernel_api(func, op_name=op_name, target=target)


def wrap_method_with_debug_kernel_once(
    obj: Any, method_name: str, *, op_name: str, marker_attr: str | None = None, target: str = TARGET
) -> Any:
    """Make one method of an object a boundary, once.

    Args:
        obj: the object; returned.
        method_name: the method's name.
        op_name: the name that its calls are recorded under.
        marker_attr: attribute that marks ``obj`` as done, ``_debug_kernel_<method>_wrapped`` if left out.
        target: what attaches the boundary.
    """
    marker = marker_attr or f"_debug_kernel_{method_name}_wrapped"
    if not enabled() or getattr(obj, marker, False):
        return obj
    try:
        # Of a class, what stands in it and not what it gives: a static method has to stay one.
        method = inspect.getattr_static(obj, method_name) if isinstance(obj, type) else getattr(obj, method_name)
        setattr(obj, method_name, _method_boundary(obj, method, op_name, target))
        setattr(obj, marker, True)
    except (AttributeError, TypeError) as error:
        tell(f"cannot attach to {op_name} ({error}); it is not recorded")
    return obj


def _method_boundary(obj: Any, method: Callable[..., Any], op_name: str, target: str) -> Any:
    """A boundary that stays a method of ``obj``: in a deep copy of it, it is one of the copy.

    The object then holds itself, and is freed by the garbage collector alone; a weak reference would leave a
    method that outlives its object without it.
    """
    if isinstance(method, MethodType) and method.__self__ is obj:
        func = method.__func__
        return method if getattr(func, WRAPPED, False) else MethodType(wrap(func, op_name, target, is_method=True), obj)
    return debug_kernel_api(method, op_name=op_name, target=target)


def enabled() -> bool:
    """Whether this process records at all."""
    return settings.current().level > settings.Level.OFF


def function_of(boundary: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a boundary of ours; anything else is given back."""
    try:
        return _functions.get(boundary, boundary)
    except TypeError:  # not one that can be hashed
        return boundary


def wrap(
    func: Callable[..., Any],
    name: str,
    target: str = TARGET,
    *,
    is_method: bool | None = None,
    mutates: Collection[int | str] = (),
    run: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The boundary around ``func``, whatever the level.

    Args:
        func: the function.
        name: the name that its calls are recorded under.
        target: what attached the boundary.
        is_method: whether the first argument is left out; left to its name, ``self`` or ``cls``, when None.
        mutates: positions and names of the arguments that it is declared to write to.
        run: what does the work of a call that is recorded, where that is not ``func`` itself.
    """
    run = run or func
    parameters = _parameters(func)
    first = 1 if is_method or (is_method is None and parameters[:1] in (("self",), ("cls",))) else 0
    name = plain_text(name)
    contracts.know(name, parameters[first:])
    is_compiling = torch.compiler.is_compiling
    begin = recorder.begin
    plainly = (func, None)

    @functools.wraps(func)
    def boundary(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return func(*args, **kwargs)
        if first:
            call = begin(name, target, args[first:], kwargs, 0, None, (func, args[0] if args else None))
        else:
            call = begin(name, target, args, kwargs, 0, None, plainly)
        if call is None:
            return func(*args, **kwargs)
        if mutates:
            call.mutates = mutates
        try:
            result = run(*args, **kwargs)
            call.returned(result)
        except BaseException as error:
            call.raised(error)
            raise
        return result

    setattr(boundary, WRAPPED, True)
    if compiled.crossing is not None:
        compiled.crossing.attach(boundary, name, target, first, mutates)
    coverage.counted(target)
    _functions[boundary] = func
    return boundary


def _not_a_boundary(func: Callable[..., Any]) -> str | None:
    """Why a function around ``func`` would not be what it is to the program, or None."""
    if isinstance(func, type):
        return "it is a class, which a function cannot stand for"
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
        return "it is asynchronous: its call is over before it has begun to run"
    if inspect.isgeneratorfunction(func):
        return "it is a generator function: its call is over before it has begun to run"
    if hasattr(type(func), "__getitem__"):
        return f"it is a {type(func).__name__}, which is launched by subscript"
    return None if callable(func) else "it cannot be called"


def infer_name(func: Callable[..., Any]) -> str:
    """Module and qualified name, without ``sglang.``, ``sgl_kernel.`` and ``<locals>``.

    A function of ``__main__`` gets its file's name in place of the module's.
    """
    qualname = str(getattr(func, "__qualname__", getattr(func, "__name__", type(func).__name__)))
    qualname = qualname.replace("<locals>.", "")
    module = str(getattr(func, "__module__", None) or "")
    prefix = next((prefix for prefix in _STRIPPED_PREFIXES if module.startswith(prefix)), "")
    module = module.removeprefix(prefix)
    if module in ("", "__main__", "builtins"):
        module = _file_stem(func)
    return f"{module}.{qualname}" if module else qualname


def _file_stem(func: Callable[..., Any]) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(func))
    except (TypeError, ValueError):
        return ""
    return Path(path).stem.strip("<>") if path else ""


def _parameters(func: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters; none where they cannot be told."""
    try:
        return tuple(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return ()
