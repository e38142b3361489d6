"""FlashInfer's public API, as its own API logger has it.

    flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run

Replaced is the decorator ``flashinfer_api``, as soon as its module is imported and before anything is decorated. Its
own logger still does what ``FLASHINFER_LOGLEVEL`` asks of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from firstfault.capture.patches import Patches

DISTRIBUTION = "flashinfer-python"
TRIED = ("0.6", "0.7")
REQUIRES = ("flashinfer.api_logging",)
OPT_IN = False
TARGET = "flashinfer"

_patches = Patches()


def install(module: ModuleType) -> None:
    """Put our decorator around FlashInfer's."""
    _patches.put(module, "flashinfer_api", _around(module.flashinfer_api))


uninstall = _patches.undo


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    from firstfault.capture import boundary

    @functools.wraps(original)
    def flashinfer_api(func: Callable[..., Any] | None = None, **options: Any) -> Any:
        if func is None:
            return lambda later: flashinfer_api(later, **options)
        name = boundary.infer_name(func)
        return boundary.debug_kernel_api(original(func, **options), op_name=name, target=TARGET)

    return flashinfer_api
