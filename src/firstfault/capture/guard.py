"""Being a guest: nothing that goes wrong in recording reaches the program, and nothing of ours is seen by it.

``internal_error`` is the one place where an error of ours ends; tests replace it to make each one fatal.
``unseen`` hides our own torch calls from modes that the program has switched on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from firstfault.capture import cuda
from firstfault.errors import tell
from firstfault.record.plain import plain_text

LONGEST_MESSAGE = 10_000
_reported: set[str] = set()
function_modes = torch._C._is_torch_function_mode_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_mode, _fake = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
_meta_kernels = torch._C._meta_in_tls_dispatch_include


def internal_error(where: str, error: Exception) -> None:
    """Report an error inside firstfault once per place, on stderr, and go on."""
    if where in _reported:
        return
    _reported.add(where)
    tell(f"error in {where}, recording goes on: {type(error).__name__}: {error}")


def reading() -> AbstractContextManager[Any]:
    """``unseen``, for what also reads values: it must not end the capture of a graph that another thread is in."""
    return _unseen_and_relaxed() if torch.cuda.is_initialized() else unseen()


@contextlib.contextmanager
def _unseen_and_relaxed() -> Iterator[None]:
    with unseen(), cuda.relaxed_capture():
        yield


def unseen() -> AbstractContextManager[Any]:
    """Hide what runs inside from the program's tensor subclasses, and from modes and ``torch.jit.trace`` where on."""
    if function_modes() or _dispatch_modes() or _tracing() is not None:
        return _modes_off()
    return torch._C.DisableTorchFunctionSubclass()


@contextlib.contextmanager
def _modes_off() -> Iterator[None]:
    tracing = _tracing()
    if tracing is not None:  # inside a dispatch mode it may not even be set to what it is
        torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            yield
    finally:
        if tracing is not None:
            torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]


def fake() -> bool:
    """Whether an operator that is called now is only to tell what its result would look like, as compilers ask it.

    The mode that asks is off while it has the operator's own kernel for meta tensors tell it.
    """
    return _mode(_fake) is not None or _meta_kernels()


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
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "inside a torch.func transform"
    return None


def message_of(error: BaseException) -> str:
    """The message of an exception, whose ``__str__`` may itself raise, up to a length that is enough for any."""
    try:
        return plain_text(str(error)[:LONGEST_MESSAGE])
    except Exception as raised:
        return f"<its message raised {type(raised).__name__}>"
