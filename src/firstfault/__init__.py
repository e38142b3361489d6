"""firstfault: find the first fault, not the last one.

    from firstfault import debug_kernel_api

    @debug_kernel_api
    def rmsnorm(x, weight, eps): ...

Nothing is read, opened or imported until one of the names below is used.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # from ``typing``, it would cost each Python that ``run --modules`` starts 10 ms
if TYPE_CHECKING:
    from typing import Any

    from firstfault.capture.boundary import (
        debug_kernel_api,
        maybe_wrap_debug_kernel,
        wrap_method_with_debug_kernel_once,
    )
    from firstfault.capture.contracts import contract
    from firstfault.capture.custom_op import debug_torch_op
    from firstfault.capture.multi_platform import CustomOp
    from firstfault.capture.program import install, uninstall
    from firstfault.llm import register_custom_op, register_custom_op_from_extern

__version__ = "0.1.0"

__all__ = [
    "CustomOp",
    "contract",
    "debug_kernel_api",
    "debug_torch_op",
    "install",
    "maybe_wrap_debug_kernel",
    "register_custom_op",
    "register_custom_op_from_extern",
    "uninstall",
    "wrap_method_with_debug_kernel_once",
]

_HOMES = {
    "CustomOp": "firstfault.layers",
    "contract": "firstfault.capture.contracts",
    "debug_kernel_api": "firstfault.capture.boundary",
    "debug_torch_op": "firstfault.capture.custom_op",
    "install": "firstfault.capture.program",
    "maybe_wrap_debug_kernel": "firstfault.capture.boundary",
    "register_custom_op": "firstfault.llm",
    "register_custom_op_from_extern": "firstfault.llm",
    "uninstall": "firstfault.capture.program",
    "wrap_method_with_debug_kernel_once": "firstfault.capture.boundary",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: it needs torch, which takes a second."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
