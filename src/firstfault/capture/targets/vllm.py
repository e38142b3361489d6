"""vLLM's operators with an implementation for each platform, its quantization methods and attention backends.

    vllm.RMSNorm    vllm.UnquantizedLinearMethod.apply    vllm.CPUAttentionBackendImpl.forward

Patched is what all of them have in common: ``CustomOp.forward``, and one method of every class that is derived from
three base classes. Its C++ kernels are custom operators, which the target ``torch_library`` records.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from firstfault.capture.patches import Patches

DISTRIBUTION = "vllm"
TRIED = ("0.32",)
OPT_IN = False
TARGET = "vllm"

_METHODS = {
    "vllm.model_executor.layers.quantization.base_config": ("QuantizeMethodBase", "apply"),
    "vllm.v1.attention.backend": ("AttentionImplBase", "forward"),
}
"""Base classes by module, and the method that each class derived from them does its work in."""
_CUSTOM_OP = "vllm.model_executor.custom_op"
REQUIRES = (_CUSTOM_OP, *_METHODS)

_patches = Patches()


def install(module: ModuleType) -> None:
    """Make the operators, or the methods of one base class, boundaries."""
    if module.__name__ == _CUSTOM_OP:
        _patches.put(module.CustomOp, "forward", _forward(module.CustomOp.forward))
        return
    base, method = _METHODS[module.__name__]
    _attach_below(getattr(module, base), method)


uninstall = _patches.undo


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """``CustomOp.forward``, recorded under the name of the class that it is called on."""
    import torch

    from firstfault.capture import boundary

    is_compiling = torch.compiler.is_compiling
    recorded: dict[type, Callable[..., Any]] = {}

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not _patches.active:
            return original(self, *args, **kwargs)
        kind = type(self)
        if kind not in recorded:
            recorded[kind] = boundary.wrap(original, f"vllm.{kind.__name__}", TARGET, is_method=True)
        return recorded[kind](self, *args, **kwargs)

    return forward


def _attach_below(base: type, method: str) -> None:
    """Make a method of every class derived from ``base`` a boundary, of those to come when they are defined."""
    original = vars(base).get("__init_subclass__")

    def attach(cls: type) -> None:
        _patches.record_method(cls, method, f"vllm.{cls.__name__}.{method}", TARGET)

    def init_subclass(cls: type, **kwargs: Any) -> None:
        if original is None:
            super(base, cls).__init_subclass__(**kwargs)  # type: ignore[arg-type]
        else:
            original.__func__(cls, **kwargs)
        if _patches.active:
            attach(cls)

    _patches.put(base, "__init_subclass__", classmethod(init_subclass))  # type: ignore[arg-type]
    for cls in _derived(base):
        attach(cls)


def _derived(base: type) -> list[type]:
    below: list[type] = list(base.__subclasses__())
    return below + [further for cls in below for further in _derived(cls)]
