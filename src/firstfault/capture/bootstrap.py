"""Attaching boundaries to a program that knows nothing of them, once it imports what they are attached to.

Called at the start of every Python process under ``firstfault run``. Nothing is imported that the program
does not import: each target waits for its library.
"""

from __future__ import annotations

from types import ModuleType

import wrapt.importer

from firstfault import settings

_LIBRARY = "torch.nn.modules.module"


def attach() -> None:
    """Wait for the libraries of the targets that the settings ask for."""
    chosen = settings.current()
    if chosen.level > settings.Level.OFF and chosen.modules:
        wrapt.importer.register_post_import_hook(_attach_modules, _LIBRARY)


def _attach_modules(_module: ModuleType) -> None:
    """Torch is half imported when its module class is: the target waits until torch is whole."""
    wrapt.importer.register_post_import_hook(_install_modules, "torch")


def _install_modules(_module: ModuleType) -> None:
    try:
        from firstfault.capture.targets import nn_module

        nn_module.install()
    except Exception:
        pass
