"""Torch's own fused operators: ``vendor(vendor.torch)``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf

from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    return nnf.rms_norm(x, weight.shape, weight, eps)


def _same_dtype(x: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> str:
    return "" if x.dtype == weight.dtype else f"{x.dtype} with a weight of {weight.dtype} is not fused"


def add(registry: Registry) -> None:
    """Add these backends."""
    registry.add(Backend("rms_norm", Kind.VENDOR, "vendor.torch", rms_norm, ("torch",), fits=_same_dtype, priority=-1))
