"""Attaching boundaries to a program that knows nothing of them, once it imports what they are attached to.

Called at the start of every Python process under ``firstfault run``. Nothing is imported that the program
does not import: each target waits for its library.
"""

from __future__ import annotations

from types import ModuleType

import wrapt.importer

from firstfault import settings
from firstfault.errors import tell

_LIBRARY = "torch"


def attach() -> None:
    """Wait for the libraries of the targets that the settings ask for."""
    chosen = settings.current()
    if chosen.level > settings.Level.OFF and chosen.modules:
        wrapt.importer.register_post_import_hook(_install_modules, _LIBRARY)


def _install_modules(_module: ModuleType) -> None:
    """Called when ``import torch`` has come to its end, which it also does when this goes wrong."""
    try:
        from firstfault.capture.targets import nn_module

        nn_module.install()
    except Exception as error:
        tell(f"modules are not recorded in this process: {type(error).__name__}: {error}")
