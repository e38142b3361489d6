"""SGLang's own kernel API boundaries, of language and of diffusion models.

    srt.layers.attention.base_attn_backend.AttentionBackend.forward
    sglang.quant_method.UnquantizedLinearMethod.apply

Replaced are the decorators of SGLang's kernel logger, as soon as its module is imported and before anything is
decorated: every boundary that its logger would have is then ours, under the same name, and its variables
``SGLANG_KERNEL_API_*`` drive our recording. The module lay elsewhere before 0.5.20, so both places are patched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from firstfault.capture.patches import Patches

DISTRIBUTION = "sglang"
TRIED = ("0.5",)
REQUIRES = (
    "sglang.kernel_api_logging",
    "sglang.kernels.kernel_api_logging",
    "sgl_kernel.debug_utils",
    "sglang.srt.utils.custom_op",
)
OPT_IN = False
TARGET = "sglang"

_patches = Patches()


def install(module: ModuleType) -> None:
    """Put our decorators in place of those that one of the modules has."""
    from firstfault.capture import boundary

    replacements: dict[str, Callable[..., Any]] = {
        "debug_kernel_api": functools.partial(boundary.debug_kernel_api, target=TARGET),
        "maybe_wrap_debug_kernel": functools.partial(boundary.maybe_wrap_debug_kernel, target=TARGET),
        "wrap_method_with_debug_kernel_once": functools.partial(
            boundary.wrap_method_with_debug_kernel_once, target=TARGET
        ),
        "debug_torch_op": _debug_torch_op,
    }
    if module.__name__ == "sglang.srt.utils.custom_op":
        # What it imported from the logger is ours already. This is its way past the dispatcher in plain eager
        # execution, which it takes only while its own logger is off.
        replacements = {}
        if hasattr(module, "_call_directly_in_eager"):
            replacements["_call_directly_in_eager"] = _both_ways(module._call_directly_in_eager)
    for name, replacement in replacements.items():
        if hasattr(module, name):
            _patches.put(module, name, replacement)


uninstall = _patches.undo


def _debug_torch_op(op_func: Callable[..., Any], op_name: str, *, namespace: str = "sglang") -> Any:
    """The registered operator as a boundary, under the name of the function behind it as in SGLang's log."""
    from firstfault.capture import boundary, custom_op

    return custom_op.operator_boundary(namespace, op_name, op_func, boundary.infer_name(op_func), TARGET)


def _both_ways(original: Callable[..., Any]) -> Callable[..., Any]:
    """SGLang's choice between a function and the operator it is registered as, the function a boundary like it."""
    from firstfault.capture import boundary

    @functools.wraps(original)
    def call_directly_in_eager(op_func: Callable[..., Any], op: Callable[..., Any]) -> Any:
        return original(boundary.debug_kernel_api(op_func, target=TARGET), op)

    return call_directly_in_eager
