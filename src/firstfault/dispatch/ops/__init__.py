"""A small set of replacements for ATen operators on the CPU: computed in float64, rounded once.

    FIRSTFAULT_ATEN_SET=firstfault USE_FLAGGEMS=1 python program.py

It stands where a library of kernels would, on machines that have no GPU for one: to see which operators a program
uses that way, and whether its result depends on how they are rounded. What runs inside one is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _to(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return x.to(
        torch.promote_types(like.dtype, torch.get_default_dtype()) if not like.is_floating_point() else like.dtype
    )


def silu(x: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-x))``."""
    return _to(x.double() / (1 + (-x.double()).exp()), x)


def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``x · Φ(x)``, or its approximation by a hyperbolic tangent."""
    wide = x.double()
    if approximate == "none":
        return _to(0.5 * wide * (1 + torch.erf(wide * 0.5**0.5)), x)
    inner = (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
    return _to(0.5 * wide * (1 + torch.tanh(inner)), x)


def rsqrt(x: torch.Tensor) -> torch.Tensor:
    """``1 / sqrt(x)``."""
    return _to(1 / x.double().sqrt(), x)


def mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The mean over dimensions."""
    return x.double().sum(None if dim is None else list(dim), keepdim=keepdim).div(_count(x, dim)).to(dtype or x.dtype)


def _count(x: torch.Tensor, dim: Sequence[int] | None) -> int:
    count = 1
    for index in (dim or range(x.ndim)) if x.ndim else ():
        count *= x.shape[index]
    return count


def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """Powers of e over their sum."""
    wide = x.double().reshape(x.shape or (1,))  # a plain number has dimension 0 too
    if not wide.numel():
        return torch.empty_like(x, dtype=torch.float32 if half_to_float else x.dtype)
    powers = (wide - wide.amax(dim, keepdim=True)).exp()
    shares = powers / powers.sum(dim, keepdim=True)
    return shares.reshape(x.shape).to(torch.float32 if half_to_float else x.dtype)


def mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product of two matrices."""
    return (x.double() @ y.double()).to(x.dtype)


def bmm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The products of two batches of matrices."""
    return (x.double() @ y.double()).to(x.dtype)


def addmm(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """``beta · bias + alpha · x · y``."""
    product = alpha * (x.double() @ y.double())
    return (product if beta == 0 else beta * bias.double() + product).to(x.dtype)


def add_(x: torch.Tensor, y: torch.Tensor | float, *, alpha: float = 1) -> torch.Tensor:
    """``x += alpha · y``; a plain number comes as that."""
    return x.copy_(x.double() + alpha * (y.double() if isinstance(y, torch.Tensor) else y))


OPERATORS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("silu", silu),
    ("gelu", gelu),
    ("rsqrt", rsqrt),
    ("mean.dim", mean),
    ("_softmax", softmax),
    ("mm", mm),
    ("bmm", bmm),
    ("addmm", addmm),
    ("add_.Tensor", add_),
)
"""ATen names and what replaces them; real numbers only."""
