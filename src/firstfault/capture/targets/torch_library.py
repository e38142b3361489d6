"""Every custom operator that Python calls as ``torch.ops.<namespace>.<operator>``.

    torch.ops.sgl_kernel.rmsnorm

Patched are the two classes that such an operator can be: kernels of engines are registered in C++ as in Python, and
nothing but the call is common to them. PyTorch's own namespaces are left to the target ``aten``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from firstfault.capture.patches import Patches

DISTRIBUTION = "torch"
TRIED = ("2.11", "2.13")
REQUIRES = ("torch",)
OPT_IN = False
TARGET = "torch_library"

PYTORCHS_OWN = frozenset({"aten", "prim", "prims", "profiler", "debugprims", "rngprims", "inductor", "_inductor_test"})

_patches = Patches()


class _Within(threading.local):
    operator: str = ""
    """The operator that this thread is in a recorded call of: a dispatch mode of the program calls it once more."""


_within = _Within()


def install(module: ModuleType) -> None:
    """Make calls of custom operators boundaries."""
    for owner in (module._ops.OpOverloadPacket, module._ops.OpOverload):
        _patches.put(owner, "__call__", _recorded(owner.__call__))


uninstall = _patches.undo


def unrecorded(operator: Any) -> Callable[..., Any]:
    """What calls an operator from inside a boundary of its own, so that one call is not recorded as two."""
    qualified = operator._qualified_op_name
    within = _within

    def call(*args: Any, **kwargs: Any) -> Any:
        outer, within.operator = within.operator, qualified
        try:
            return operator(*args, **kwargs)
        finally:
            within.operator = outer

    return call


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    from firstfault.capture import guard, recorder

    is_compiling = torch.compiler.is_compiling
    fake = guard.fake
    begin = recorder.begin
    known: dict[Any, _Told | None] = {}
    within = _within

    @functools.wraps(original)
    def call_operator(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            told = known[self]
        except KeyError:
            told = known[self] = _tell(self)
        if told is None or is_compiling() or fake() or not _patches.active:
            return original(self, *args, **kwargs)
        outer = within.operator
        call = begin(told.name, TARGET, args, kwargs, 0, None, (self, None)) if told.operator != outer else None
        if call is None:
            return original(self, *args, **kwargs)
        call.mutates = told.mutates
        within.operator = told.operator
        try:
            result = original(self, *args, **kwargs)
            call.returned(result)
        except BaseException as error:
            call.raised(error)
            raise
        finally:
            within.operator = outer
        return result

    return call_operator


class _Told(NamedTuple):
    operator: str
    """As the dispatcher has it, ``sgl_kernel::rmsnorm``, whichever overload."""
    name: str
    mutates: frozenset[int | str]


def _tell(operator: Any) -> _Told | None:
    """What an operator is called and which arguments it writes to, or None for one of PyTorch's own."""
    from firstfault.capture import contracts, coverage, guard
    from firstfault.capture.custom_op import parameters, written_arguments

    try:
        schema = getattr(operator, "_schema", None)  # of one overload; a packet has several
        qualified = schema.name if schema is not None else getattr(operator, "_qualified_op_name", "")
        namespace, _, name = qualified.partition("::")
        if not name or namespace in PYTORCHS_OWN:
            return None
        overload = f".{schema.overload_name}" if schema is not None and schema.overload_name else ""
        overloads = _overloads(operator)
        title = f"torch.ops.{namespace}.{name}{overload}"
        coverage.counted(TARGET)
        contracts.know(title, parameters(overloads))
        return _Told(qualified, title, written_arguments(overloads))
    except Exception as error:
        guard.internal_error("attaching to a custom operator", error)
        return None


def _overloads(operator: Any) -> list[Any]:
    if hasattr(operator, "overloads"):
        return [getattr(operator, name) for name in operator.overloads()]
    return [operator]
