"""Attaching boundaries to a program that knows nothing of them, once it imports what they are attached to.

Called at the start of every Python process under ``firstfault run``. Nothing is imported that the program
does not import: each target waits for its library.
"""

from __future__ import annotations

import sys
from types import ModuleType

import wrapt.importer

from firstfault import settings


def attach() -> None:
    """Wait for the libraries of the targets that the settings ask for."""
    chosen = settings.current()
    if chosen.level > settings.Level.OFF and chosen.modules:
        wrapt.importer.register_post_import_hook(_install_modules, "torch")


def _install_modules(_torch: ModuleType) -> None:
    try:
        from firstfault.capture.targets import nn_module

        nn_module.install()
    except Exception as error:
        print(f"firstfault: cannot attach to torch.nn.Module ({error}); it is not recorded", file=sys.stderr)
