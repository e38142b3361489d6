"""Our own Triton kernels, for what FlagGems has none of and for where it is not installed: ``flagos(triton)``.

They run on any device that Triton compiles for, and with ``TRITON_INTERPRET=1`` on CPU tensors.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import torch

from firstfault.dispatch.backends.reference import section_axis
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry

NAME = "triton"
NARROW = (torch.float16, torch.bfloat16, torch.float32)
"""What the kernels compute right in float32."""


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import activation

    return activation.gated(x, activation.SILU)


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import activation

    return activation.gated(x, activation.GELU if approximate == "none" else activation.GELU_TANH)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import norm

    return norm.rms(x, weight, eps)[0]


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import norm

    return norm.rms(x, weight, eps, residual=residual)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import norm

    return norm.rms(x, weight, eps, offset=1.0)[0]


def rotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import rotary

    return (
        rotary.rotate(query, cos, sin, positions, interleaved),
        rotary.rotate(key, cos, sin, positions, interleaved),
    )


@functools.lru_cache(maxsize=32)
def _axis(section: tuple[int, ...], mrope_interleaved: bool, device: torch.device) -> torch.Tensor:
    return section_axis(section, mrope_interleaved, device)


def mrotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    section: Sequence[int],
    interleaved: bool = False,
    mrope_interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import rotary

    axis = _axis(tuple(section), mrope_interleaved, query.device)
    return (
        rotary.rotate(query, cos, sin, positions, interleaved, axis),
        rotary.rotate(key, cos, sin, positions, interleaved, axis),
    )


def topk_softmax(gating: torch.Tensor, k: int, renormalize: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    from firstfault.dispatch.backends.kernels import topk

    return topk.topk(gating, k, renormalize)


def available() -> str:
    """Why no kernel of Triton's can run here; empty where some can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if interpreted() or torch.accelerator.is_available():
        return ""
    return "there is no GPU, and TRITON_INTERPRET=1 is not set"


def interpreted() -> bool:
    """Whether Triton's interpreter runs kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def fits(x: torch.Tensor, *_: Any, **__: Any) -> str:
    """Why a call is not for a Triton kernel; empty where it is."""
    if x.dtype not in NARROW:
        return f"{x.dtype} is not computed in float32"
    if x.device.type == "cpu" and not interpreted():
        return "its tensors are on the CPU"
    return ""


def add(registry: Registry) -> None:
    """Add these backends; FlagGems' own come first."""
    kernels = (
        silu_and_mul,
        gelu_and_mul,
        rms_norm,
        fused_add_rms_norm,
        gemma_rms_norm,
        rotary_embedding,
        mrotary_embedding,
        topk_softmax,
    )
    for run in kernels:
        registry.add(Backend(run.__name__, Kind.FLAGOS, NAME, run, available=available, fits=fits, priority=-1))
