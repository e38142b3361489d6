"""Every operator that goes through PyTorch's dispatcher, PyTorch's own included; only where it is asked for.

    aten.mm.default

Each thread of the program gets a dispatch mode: it sees below autograd, and what C++ calls too. Attached where the
thread begins, because modes belong to one thread.
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
OPT_IN = True
TARGET = "aten"

_patches = Patches()
_entered: list[Any] = []


def install(module: ModuleType) -> None:
    """Enter the mode in this thread, and in each that begins from now on."""
    if not _entered:
        _entered.append(_mode().__enter__())
    _patches.put(threading.Thread, "_bootstrap_inner", _in_mode(threading.Thread._bootstrap_inner))  # type: ignore[attr-defined]


def uninstall() -> None:
    """Leave the mode in this thread.

    Threads that are under way keep theirs, and so does this one if the program has entered another since, or had
    ``install`` called in another thread: modes are left in their order. One that stays only passes on.
    """
    _patches.undo()
    if _entered and _innermost() is _entered[0]:
        _entered.pop().__exit__(None, None, None)


def _innermost() -> Any:
    """The mode that this thread has entered last."""
    from torch.utils import _python_dispatch

    return _python_dispatch._get_current_dispatch_mode()


def _in_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bootstrap_inner(self: threading.Thread) -> Any:
        if not _patches.active:
            return original(self)
        with _mode():
            return original(self)

    return bootstrap_inner


@functools.cache
def _mode_class() -> type:
    from torch.utils._python_dispatch import TorchDispatchMode

    from firstfault.capture import contracts, guard, recorder
    from firstfault.capture.custom_op import parameters, written_arguments

    begin = recorder.begin
    fake = guard.fake
    writes: dict[Any, frozenset[int | str]] = {}

    class Recording(TorchDispatchMode):
        """Makes a boundary of each operator."""

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Whether ``torch.compile`` may go on as if the mode were not there."""
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            is_real = _patches.active and not fake()
            if is_real and func not in writes:
                contracts.know(str(func), parameters([func]))
                writes[func] = written_arguments([func])
            call = begin(str(func), TARGET, args, kwargs, 0, None, (func, None)) if is_real else None
            if call is None:
                return func(*args, **kwargs)
            try:
                call.mutates = writes[func]
                result = func(*args, **kwargs)
                call.returned(result)
            except BaseException as error:
                call.raised(error)
                raise
            return result

    return Recording


def _mode() -> Any:
    return _mode_class()()
