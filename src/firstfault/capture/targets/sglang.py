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
_REGISTRATION = "sglang.srt.utils.custom_op"
_DIRECTLY = "_call_directly_in_eager"
REQUIRES = (
    "sglang.kernel_api_logging",
    "sglang.kernels.kernel_api_logging",
    "sgl_kernel.debug_utils",
    _REGISTRATION,
)
OPT_IN = False
TARGET = "sglang"

_patches = Patches()


def install(module: ModuleType) -> None:
    """Put our decorators in place of those that one of the modules has."""
    # What the registration of custom operators imported from the logger is ours already.
    replacements = _eager_calls(module) if module.__name__ == _REGISTRATION else _decorators()
    for name, replacement in replacements.items():
        if hasattr(module, name):
            _patches.put(module, name, replacement)


uninstall = _patches.undo


def _decorators() -> dict[str, Callable[..., Any]]:
    from firstfault.capture import boundary

    ours = (boundary.debug_kernel_api, boundary.maybe_wrap_debug_kernel, boundary.wrap_method_with_debug_kernel_once)
    named: dict[str, Callable[..., Any]] = {
        decorator.__name__: functools.partial(decorator, target=TARGET) for decorator in ours
    }
    return named | {"debug_torch_op": _debug_torch_op}


def _eager_calls(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """SGLang's way past the dispatcher in plain eager execution, which it takes only while its own logger is off."""
    original = getattr(module, _DIRECTLY, None)
    return {_DIRECTLY: _both_ways(original)} if original is not None else {}


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
