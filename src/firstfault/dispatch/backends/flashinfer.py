"""FlashInfer's CUDA kernels, which it compiles at their first call: ``vendor(vendor.flashinfer)``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from firstfault.dispatch.backends.vendor import all_of, only_on, rotated_in_place, rows, whole_vectors
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry

NAME = "vendor.flashinfer"
VENDOR = ("flashinfer", "cuda", "nvidia")


def _module(name: str) -> Any:
    return importlib.import_module(f"flashinfer.{name}")


@functools.cache
def available() -> str:
    """Why FlashInfer cannot be used here; empty where it can."""
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer is not installed"
    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU that flashinfer could run on"
    try:
        _module("norm"), _module("activation"), _module("rope")
    except Exception as error:
        return f"flashinfer cannot be imported: {type(error).__name__}: {error}"
    return ""


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    return _module("activation").silu_and_mul(x.contiguous())  # type: ignore[no-any-return]


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """As the reference."""
    kernels = _module("activation")
    return (kernels.gelu_and_mul if approximate == "none" else kernels.gelu_tanh_and_mul)(x.contiguous())  # type: ignore[no-any-return]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    return _module("norm").rmsnorm(rows(x), weight, eps).view(x.shape)  # type: ignore[no-any-return]


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; writes over ``x`` and ``residual``."""
    normed, total = rows(x), rows(residual)
    _module("norm").fused_add_rmsnorm(normed, total, weight, eps)
    return normed.view(x.shape), total.view(residual.shape)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    return _module("norm").gemma_rmsnorm(rows(x), weight, eps).view(x.shape)  # type: ignore[no-any-return]


def rotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; the kernel takes cosines and sines in float32."""
    kernel = _module("rope").apply_rope_with_cos_sin_cache_inplace
    return rotated_in_place(kernel, query, key, cos, sin, positions, interleaved, table=torch.float32)


def add(registry: Registry) -> None:
    """Add these backends."""
    half = only_on("cuda", torch.float16, torch.bfloat16)
    vectors = all_of(half, whole_vectors)
    fits: dict[Callable[..., Any], Callable[..., str]] = {
        silu_and_mul: vectors,
        gelu_and_mul: vectors,
        rms_norm: half,
        fused_add_rms_norm: half,
        gemma_rms_norm: half,
        rotary_embedding: half,
    }
    for run, fit in fits.items():
        registry.add(Backend(run.__name__, Kind.VENDOR, NAME, run, VENDOR, available=available, fits=fit, priority=2))
