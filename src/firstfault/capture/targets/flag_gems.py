"""FlagGems' operators, called by themselves or in place of PyTorch's own.

    flag_gems.ops.mm.mm

Replaced are the public functions of the packages that FlagGems takes its operators from, before it builds the list
of those that it registers with PyTorch's dispatcher.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from firstfault.capture.patches import Patches

DISTRIBUTION = "flag-gems"
TRIED = ("4.2", "5.0")
REQUIRES = ("flag_gems.ops", "flag_gems.fused", "flag_gems.experimental_ops")
OPT_IN = False
TARGET = "flag_gems"

_patches = Patches()


def install(module: ModuleType) -> None:
    """Make the operators of one package boundaries."""
    from firstfault.capture import boundary

    for name, function in list(vars(module).items()):
        if inspect.isfunction(function) and function.__module__.startswith("flag_gems.") and not name.startswith("_"):
            _patches.put(module, name, boundary.debug_kernel_api(function, target=TARGET))


uninstall = _patches.undo
