"""Being a guest: nothing that goes wrong in recording reaches the program, and nothing of ours is seen by it.

``internal_error`` is the one place where an error of ours ends; tests replace it to make each one fatal.
``unseen`` hides our own torch calls from modes that the program has switched on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

_reported: set[str] = set()
_function_modes = torch._C._is_torch_function_mode_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack


def internal_error(where: str, error: Exception) -> None:
    """Report an error inside firstfault once per place, on stderr, and go on."""
    if where in _reported:
        return
    _reported.add(where)
    tell(f"error in {where}, recording goes on: {type(error).__name__}: {error}")


def tell(message: str) -> None:
    """One line to the user on stderr, if there is one that can be written to."""
    with contextlib.suppress(Exception):
        print(f"firstfault: {message}", file=sys.stderr, flush=True)


def unseen() -> AbstractContextManager[Any]:
    """Hide what runs inside from the program's tensor subclasses, and from its torch modes where it has any."""
    if _function_modes() or _dispatch_modes():
        return _modes_off()
    return torch._C.DisableTorchFunctionSubclass()


@contextlib.contextmanager
def _modes_off() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def graph_capture_active() -> bool:
    """Whether the current CUDA stream is being captured; True where that cannot be told.

    A copy or synchronisation during capture would break the program, so doubt counts as capture.
    """
    if not torch.cuda.is_initialized():
        return False
    try:
        return bool(torch.cuda.is_current_stream_capturing())
    except Exception:
        return True


def values_out_of_reach() -> str | None:
    """Why no tensor's values may be read just now, or None: an operation of ours would become part of it."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace in progress"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "inside a torch.func transform"
    return None
