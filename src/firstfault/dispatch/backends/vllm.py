"""The kernels that vLLM carries for the device that it is built for, CPUs among them: ``vendor(vendor.vllm)``.

Only a process that has imported vLLM gets them: importing it takes seconds, and changes how the process logs.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from firstfault.dispatch.backends.vendor import all_of, only_on, rotated_in_place, rows
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry

NAME = "vendor.vllm"
VENDOR = ("vllm",)


def available(function: str) -> str:
    """Why an operator of vLLM cannot be used here; empty where it can."""
    if "vllm" not in sys.modules:
        return "this process has not imported vllm"
    return "" if hasattr(torch.ops._C, function) else f"this vllm has no operator {function}"


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    return _gated("silu_and_mul", x)


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """As the reference."""
    return _gated("gelu_and_mul" if approximate == "none" else "gelu_tanh_and_mul", x)


def _gated(name: str, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    getattr(torch.ops._C, name)(out, x.contiguous())
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    given = rows(x)
    out = torch.empty_like(given)
    torch.ops._C.rms_norm(out, given, weight, eps)
    return out.view(x.shape)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; writes over ``x`` and ``residual``."""
    normed, total = rows(x), rows(residual)
    torch.ops._C.fused_add_rms_norm(normed, total, weight, eps)
    return normed.view(x.shape), total.view(residual.shape)


def rotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; cosines and sines are rounded to the dtype of the query, as the kernel takes them."""
    kernel = torch.ops._C.rotary_embedding
    return rotated_in_place(kernel, query, key, cos, sin, positions, interleaved, table=query.dtype)


def _built_for(x: torch.Tensor, *_: Any, **__: Any) -> str:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return only_on(device, torch.float16, torch.bfloat16, torch.float32)(x)


def _whole_lanes(x: torch.Tensor, *_: Any, **__: Any) -> str:
    """The kernels for CPUs go over rows by whole vectors of 16 values."""
    return "" if x.shape[-1] % 32 == 0 else f"a row of {x.shape[-1]} values is not a multiple of 32"


def add(registry: Registry) -> None:
    """Add these backends."""
    for run in (silu_and_mul, gelu_and_mul, rms_norm, fused_add_rms_norm, rotary_embedding):
        name = run.__name__
        can = functools.partial(available, name)
        fit = _built_for if run is rotary_embedding else all_of(_built_for, _whole_lanes)
        registry.add(Backend(name, Kind.VENDOR, NAME, run, VENDOR, available=can, fits=fit, priority=1))
