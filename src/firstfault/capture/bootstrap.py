"""Attaching boundaries to a program that knows nothing of them, once it imports what they are attached to.

Called at the start of every Python process under ``firstfault run``. Nothing is imported that the program
does not import: each target waits for its library. Most processes never import torch, so that waiting must cost
next to nothing: ``typing`` alone would take as long as all that is here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_LIBRARY = "torch"


def attach() -> None:
    """Wait for the libraries of the targets that the settings ask for."""
    if not (_set_by_run() or _wanted()):
        return
    if _LIBRARY in sys.modules:
        _install_modules()
    else:
        sys.meta_path.insert(0, _Waiting())


class _Waiting:
    """Finds the library as the finders behind it do, and sees its import come to its end."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """What the others find, with a loader that says when it is done."""
        if name != _LIBRARY or self._asking:
            return None
        import importlib.util

        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            try:
                self._see_end_of(spec.loader)
            except Exception as error:  # a loader of another kind than any that Python has
                _not_recorded(error)
        return spec

    def _see_end_of(self, loader: Loader) -> None:
        """Install when ``loader`` has run the library; then there is nothing of ours left to be seen on it."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _install_modules()

        loader.exec_module = exec_module  # type: ignore[method-assign]


def _set_by_run() -> bool:
    """Whether modules are to be recorded as far as two variables tell; reading them all takes 40 ms."""
    return os.environ.get("FIRSTFAULT_MODULES") == "1" and os.environ.get("FIRSTFAULT_LOGLEVEL", "").isdecimal()


def _wanted() -> bool:
    from firstfault import settings

    chosen = settings.current()
    return chosen.level > settings.Level.OFF and chosen.modules


def _install_modules() -> None:
    """Called when ``import torch`` has come to its end, which it also does when this goes wrong."""
    try:
        if _wanted():
            from firstfault.capture.targets import nn_module

            nn_module.install()
    except Exception as error:
        _not_recorded(error)


def _not_recorded(error: Exception) -> None:
    from firstfault.errors import tell

    tell(f"modules are not recorded in this process: {type(error).__name__}: {error}")
