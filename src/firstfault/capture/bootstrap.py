"""Attaching boundaries to a program that knows nothing of them, once it imports what they are attached to.

Called at the start of every Python process under ``firstfault run``. Nothing is imported that the program
does not import: most processes never import torch, so that waiting for it must cost next to nothing: ``typing``
alone would take as long as all that is here.
"""

from __future__ import annotations

import os

from firstfault.capture.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


_BACKENDS = "USE_FLAGGEMS SGLANG_PLUGINS FIRSTFAULT_USE_FLAGGEMS FIRSTFAULT_PLUGINS"
_BACKEND_NAMES = (
    "FL_ALLOW_VENDORS FL_CONFIG FL_DENY_VENDORS FL_DISPATCH_LOG FL_FLAGOS_BLACKLIST FL_FLAGOS_WHITELIST "
    "FL_OOT_BLACKLIST FL_OOT_ENABLED FL_OOT_WHITELIST FL_PER_OP FL_PREFER FL_STRICT "
    "FLAGGEMS_LOG_ONCE FLAGGEMS_LOG_PATH FLAGGEMS_RECORD"
)
_BACKEND_OWN = "ATEN_SET SHADOW SHADOW_OPS SHADOW_TOLERANCE"


def asks_for_backends() -> bool:
    """Whether a variable of the policy of operator backends is set; reading what it says takes 10 ms."""
    asking = {*_BACKENDS.split(), *("FIRSTFAULT_" + name for name in _BACKEND_OWN.split())}
    for name in _BACKEND_NAMES.split():
        asking |= {"SGLANG_" + name, "FIRSTFAULT_" + name.removeprefix("FL_")}
    return not asking.isdisjoint(os.environ)


def attach() -> None:
    """Wait for torch, and then for the libraries of the targets that the settings ask for."""
    if _set_by_run() or _wanted():
        when_imported("torch", _attach_targets, _not_recorded)


def _set_by_run() -> bool:
    """Whether targets are to be attached as far as two variables tell; reading them all takes 40 ms."""
    level = os.environ.get("FIRSTFAULT_LOGLEVEL", "")
    return bool(os.environ.get("FIRSTFAULT_TARGETS")) and level != "0" and level.isdecimal()


def _wanted() -> bool:
    from firstfault import settings

    chosen = settings.current()
    return chosen.level > settings.Level.OFF and bool(chosen.targets)


def _attach_targets(torch: ModuleType) -> None:
    """Called when ``import torch`` has come to its end, which it also does when this goes wrong."""
    try:
        if _wanted():
            import atexit

            from firstfault import settings
            from firstfault.capture import recorder, targets

            targets.attach(settings.current().targets)
            atexit.register(recorder.leave_word)
    except Exception as error:
        _not_recorded(error)


def _not_recorded(error: Exception) -> None:
    from firstfault.errors import tell

    tell(f"nothing is recorded in this process: {type(error).__name__}: {error}")
