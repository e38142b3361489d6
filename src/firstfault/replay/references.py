"""Which implementation a serving operator is held against, and a place for others to register theirs.

    rmsnorm(input, weight, eps)      input * rsqrt(mean(input²) + eps) * weight

Others come from entry points of the group ``firstfault.references``: the name is a pattern of the operator's last
part, the object the function. A reference takes what the operator takes, and writes where it writes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import torch

from firstfault import peers

GROUP = "firstfault.references"
Function = Callable[..., Any]


def of(op: str) -> tuple[str, Function] | None:
    """The pattern and the function of an operator's reference; None where none is registered."""
    name = op.rpartition(".")[2].lower()
    if name in ("forward", "default"):
        name = op.split(".")[-2].lower() if "." in op else name
    for pattern, point in peers.entry_points(GROUP).items():
        if fnmatch.fnmatchcase(name, pattern.lower()):
            return pattern, point.load()
    return next(((known, function) for known, function in REFERENCES.items() if fnmatch.fnmatchcase(name, known)), None)


def _written(out: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    """What an operator gives, in the tensor that it was told to write to if there is one."""
    return value if out is None else out.copy_(value)


def rmsnorm(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Root-mean-square normalisation over the last dimension; FlashInfer's and sgl_kernel's arguments."""
    return _written(out, input * torch.rsqrt(input.square().mean(-1, keepdim=True) + eps) * weight)


def gemma_rmsnorm(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """The same with weights that are stored less one."""
    return rmsnorm(input, weight + 1, eps, out)


def fused_add_rmsnorm(
    input: torch.Tensor,  # noqa: A002
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    **_: Any,
) -> None:
    """``residual += input``, and ``input`` the normalised residual, both in place."""
    residual.add_(input)
    input.copy_(rmsnorm(residual, weight, eps))


def _gated(activation: Function) -> Function:
    """An activation of the first half of the last dimension, times the second half."""

    def gated(input: torch.Tensor, out: torch.Tensor | None = None, **_: Any) -> torch.Tensor:  # noqa: A002
        first, second = input.chunk(2, -1)
        return _written(out, activation(first) * second)

    return gated


silu_and_mul = _gated(torch.nn.functional.silu)
gelu_and_mul = _gated(torch.nn.functional.gelu)
gelu_tanh_and_mul = _gated(lambda half: torch.nn.functional.gelu(half, approximate="tanh"))

REFERENCES: dict[str, Function] = {
    "fused_add_rmsnorm": fused_add_rmsnorm,
    "gemma_rmsnorm": gemma_rmsnorm,
    "rmsnorm": rmsnorm,
    "silu_and_mul": silu_and_mul,
    "gelu_and_mul": gelu_and_mul,
    "gelu_tanh_and_mul": gelu_tanh_and_mul,
}
"""By the operator's last name, in the spelling of sgl_kernel and FlashInfer."""
