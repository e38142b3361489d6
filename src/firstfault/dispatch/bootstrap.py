"""Putting a process's policy in force without a change to its program, once it imports torch.

Called at the start of a Python process that firstfault has started, where a variable asks for operator backends.
"""

from __future__ import annotations

from firstfault.capture.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def attach() -> None:
    """Wait for torch, and then start what the policy asks for."""
    when_imported("torch", _start, _not_started)


def _start(torch: ModuleType) -> None:
    """Called when ``import torch`` has come to its end, which it also does when this goes wrong."""
    try:
        from firstfault.dispatch import policy

        if policy.current().active:
            from firstfault.dispatch import program

            program.start()
    except Exception as error:
        _not_started(error)


def _not_started(error: Exception) -> None:
    from firstfault.errors import tell

    tell(f"operators keep the backends that they have in this process: {type(error).__name__}: {error}")
