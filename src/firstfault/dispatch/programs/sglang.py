"""SGLang: its layer classes by the policy, as one of its general plugins.

SGLang resolves a layer's forward in one method, which its own registry of hooks patches: when a layer is made, in
``MultiPlatformOp.dispatch_forward`` (as 0.5.11), or at its first call, in ``BaseFusedOp._resolve_forward_method`` (as
0.5.23). A layer that SGLang has pinned to one of its forwards never comes there, and keeps it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from firstfault.dispatch import layers

RESOLVERS = (
    ("sglang.kernels.fused_op", "BaseFusedOp", "_resolve_forward_method"),
    ("sglang.srt.layers.utils.multi_platform", "MultiPlatformOp", "dispatch_forward"),
)


def resolver() -> str:
    """The dotted name of the method that resolves a layer's forward in this SGLang.

    Raises:
        ImportError: it has none of those known.
    """
    for module, cls, method in RESOLVERS:
        try:
            owner = getattr(importlib.import_module(module), cls)
        except (ImportError, AttributeError):
            continue
        if hasattr(owner, method):
            return f"{module}.{cls}.{method}"
    raise ImportError("this version of SGLang resolves its layers' forwards in none of the ways known")


def install() -> None:
    """Hook the resolver; SGLang applies the hook when all plugins have been loaded."""
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")

    def resolve(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        return layers.routed(layer, original(layer, *args, **kwargs))

    registry.HookRegistry.register(resolver(), resolve, registry.HookType.AROUND)
