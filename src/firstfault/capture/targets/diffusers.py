"""Attention processors and rotary embeddings of diffusers.

    diffusers.AttnProcessor2_0        diffusers.models.embeddings.apply_rotary_emb

A processor is no module, so that nobody else sees it: its class becomes a boundary when an attention layer is given
the first one of it. Linear layers are modules, which the target ``nn_module`` records by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from firstfault.capture.patches import Patches

DISTRIBUTION = "diffusers"
TRIED = ("0.42",)
REQUIRES = ("diffusers.models.attention_processor", "diffusers.models.attention", "diffusers.models.embeddings")
OPT_IN = False
TARGET = "diffusers"

_patches = Patches()


def install(module: ModuleType) -> None:
    """Watch who sets processors, and make the functions that rotate boundaries."""
    from firstfault.capture import boundary

    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(value) and name.startswith("apply_rotary_emb"):
            _patches.put(module, name, boundary.debug_kernel_api(value, target=TARGET))
        elif inspect.isclass(value) and "set_processor" in vars(value):
            _patches.put(value, "set_processor", _watched(vars(value)["set_processor"]))


uninstall = _patches.undo


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_processor(self: Any, processor: Any, *args: Any, **kwargs: Any) -> Any:
        if _patches.active:
            kind = type(processor)
            _patches.record_method(kind, "__call__", f"diffusers.{kind.__name__}", TARGET)
        return original(self, processor, *args, **kwargs)

    return set_processor
