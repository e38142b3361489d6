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
from typing import Any

from firstfault.capture.patches import Patches

DISTRIBUTION = "torch"
TRIED = ("2.11", "2.13")
REQUIRES = ("torch",)
OPT_IN = False
TARGET = "torch_library"

PYTORCHS_OWN = frozenset({"aten", "prim", "prims", "profiler", "debugprims", "rngprims", "inductor", "_inductor_test"})

_patches = Patches()


class _Passing(threading.local):
    operator: Any = None
    """The operator whose next call in this thread is a part of one that is recorded already."""


_passing = _Passing()


def install(module: ModuleType) -> None:
    """Make calls of custom operators boundaries."""
    for owner in (module._ops.OpOverloadPacket, module._ops.OpOverload):
        _patches.put(owner, "__call__", _recorded(owner.__call__))


uninstall = _patches.undo


def unrecorded(operator: Any) -> Callable[..., Any]:
    """What calls an operator from inside a boundary of its own, so that one call is not recorded as two."""
    if not _patches.active:
        return operator  # type: ignore[no-any-return]

    def call(*args: Any, **kwargs: Any) -> Any:
        _passing.operator = operator
        return operator(*args, **kwargs)

    return call


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    from firstfault.capture import recorder

    is_compiling = torch.compiler.is_compiling
    active_mode, fake = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
    begin = recorder.begin
    known: dict[Any, tuple[str, frozenset[int | str]] | None] = {}

    @functools.wraps(original)
    def call_operator(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            told = known[self]
        except KeyError:
            told = known[self] = _tell(self)
        if told is None or is_compiling() or active_mode(fake) is not None or not _patches.active:
            return original(self, *args, **kwargs)
        if _passing.operator is self:
            _passing.operator = None
            return original(self, *args, **kwargs)
        name, mutates = told
        call = begin(name, TARGET, args, kwargs)
        if call is None:
            return original(self, *args, **kwargs)
        call.mutates = mutates
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            call.raised(error)
            raise
        call.returned(result)
        return result

    return call_operator


def _tell(operator: Any) -> tuple[str, frozenset[int | str]] | None:
    """Name of an operator and which arguments it writes to, or None for one of PyTorch's own."""
    from firstfault.capture import coverage
    from firstfault.capture.custom_op import written_arguments

    schema = getattr(operator, "_schema", None)  # of one overload; a packet has several
    qualified = schema.name if schema is not None else getattr(operator, "_qualified_op_name", "")
    namespace, _, name = qualified.partition("::")
    if not name or namespace in PYTORCHS_OWN:
        return None
    coverage.counted(TARGET)
    overload = schema.overload_name if schema is not None else ""
    return f"torch.ops.{namespace}.{name}" + (f".{overload}" if overload else ""), written_arguments(
        _overloads(operator)
    )


def _overloads(operator: Any) -> list[Any]:
    if hasattr(operator, "overloads"):
        return [getattr(operator, name) for name in operator.overloads()]
    return [operator]
