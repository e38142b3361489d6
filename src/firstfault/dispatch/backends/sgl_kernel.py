"""The CUDA kernels that SGLang carries: ``vendor(vendor.sgl_kernel)``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from firstfault.dispatch.backends.vendor import all_of, only_on, rotated_in_place, rows, whole_vectors
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry

NAME = "vendor.sgl_kernel"
VENDOR = ("sgl_kernel", "cuda", "nvidia")
_HALF = (torch.float16, torch.bfloat16)
_FUNCTIONS = {
    "silu_and_mul": "silu_and_mul",
    "gelu_and_mul": "gelu_and_mul",
    "rms_norm": "rmsnorm",
    "fused_add_rms_norm": "fused_add_rmsnorm",
    "gemma_rms_norm": "gemma_rmsnorm",
    "rotary_embedding": "rotary_embedding",
    "topk_softmax": "topk_softmax",
    "moe_align_block_size": "moe_align_block_size",
}


@functools.cache
def _kernels() -> ModuleType:
    return importlib.import_module("sgl_kernel")


@functools.cache
def available(function: str) -> str:
    """Why a function of sgl_kernel cannot be used here; empty where it can."""
    if importlib.util.find_spec("sgl_kernel") is None:
        return "sgl_kernel is not installed"
    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU that sgl_kernel could run on"
    try:
        return "" if hasattr(_kernels(), function) else f"this version of sgl_kernel has no {function}"
    except Exception as error:
        return f"sgl_kernel cannot be imported: {type(error).__name__}: {error}"


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    return _kernels().silu_and_mul(x.contiguous())  # type: ignore[no-any-return]


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """As the reference."""
    kernels = _kernels()
    return (kernels.gelu_and_mul if approximate == "none" else kernels.gelu_tanh_and_mul)(x.contiguous())  # type: ignore[no-any-return]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    return _kernels().rmsnorm(rows(x), weight, eps).view(x.shape)  # type: ignore[no-any-return]


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; writes over ``x`` and ``residual``."""
    normed, total = rows(x), rows(residual)
    _kernels().fused_add_rmsnorm(normed, total, weight, eps)
    return normed.view(x.shape), total.view(residual.shape)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    return _kernels().gemma_rmsnorm(rows(x), weight, eps).view(x.shape)  # type: ignore[no-any-return]


def rotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; cosines and sines are rounded to the dtype of the query, as the kernel takes them."""
    return rotated_in_place(
        _kernels().rotary_embedding, query, key, cos, sin, positions, interleaved, table=query.dtype
    )


def topk_softmax(gating: torch.Tensor, k: int, renormalize: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    weights = torch.empty((gating.shape[0], k), dtype=torch.float32, device=gating.device)
    ids = torch.empty((gating.shape[0], k), dtype=torch.int32, device=gating.device)
    _kernels().topk_softmax(weights, ids, gating.contiguous(), renormalize)
    return weights, ids


def moe_align_block_size(
    topk_ids: torch.Tensor, block_size: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the reference; the kernel counts experts from one, as it keeps the first place for those of other ranks."""
    room = topk_ids.numel() + (num_experts + 1) * (block_size - 1)
    sorted_ids = torch.full((room,), topk_ids.numel(), dtype=torch.int32, device=topk_ids.device)
    expert_ids = torch.zeros(-(-room // block_size), dtype=torch.int32, device=topk_ids.device)
    total = torch.empty(1, dtype=torch.int32, device=topk_ids.device)
    sums = torch.empty(num_experts + 2, dtype=torch.int32, device=topk_ids.device)
    _kernels().moe_align_block_size(topk_ids, num_experts + 1, block_size, sorted_ids, expert_ids, total, sums, True)
    return sorted_ids, expert_ids, total


def add(registry: Registry) -> None:
    """Add these backends."""
    half = only_on("cuda", *_HALF)
    fits: dict[Callable[..., Any], Callable[..., str]] = {
        silu_and_mul: all_of(half, whole_vectors),
        gelu_and_mul: all_of(half, whole_vectors),
        rms_norm: half,
        fused_add_rms_norm: half,
        gemma_rms_norm: half,
        rotary_embedding: half,
        topk_softmax: only_on("cuda", *_HALF, torch.float32),
        moe_align_block_size: only_on("cuda", torch.int32),
    }
    for run, fit in fits.items():
        name = run.__name__
        can = functools.partial(available, _FUNCTIONS[name])
        registry.add(Backend(name, Kind.VENDOR, NAME, run, VENDOR, available=can, fits=fit, priority=3))
