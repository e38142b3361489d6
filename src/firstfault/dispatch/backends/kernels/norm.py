"""RMS norms: plain, with a weight that is stored as its difference from one, and of a sum with a residual."""

# mypy: ignore-errors
# This is triton's language, whose names are types and whose functions are not Python's.

from __future__ import annotations

import torch
import triton
import triton.language as tl

WIDEST_BLOCK = 4096
"""Values of a row that one program holds at once; longer rows are read twice."""


@triton.jit
def _rms(
    x,
    residual,
    weight,
    out,
    total_out,
    x_stride,
    residual_stride,
    eps,
    WIDTH: tl.constexpr,
    OFFSET: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < WIDTH
        value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if ADDS:
            value += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(total_out + row * WIDTH + column, value.to(total_out.dtype.element_ty), mask=inside)
        squares += value * value
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < WIDTH
        value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if ADDS:  # again from the operands: the sum in memory is rounded
            value += tl.load(residual + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        factor = OFFSET + tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * WIDTH + column, (value * scale * factor).to(out.dtype.element_ty), mask=inside)


def _rows(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def rms(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, offset: float = 0.0, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of the rows of ``x``, or of ``x + residual``, and that sum (of no meaning without one).

    Args:
        x: ``[..., n]``.
        weight: ``[n]``.
        eps: added to the mean of squares.
        offset: what the weight is a difference from.
        residual: shaped like ``x``; added to it in float32 where given.
    """
    rows, width = _rows(x), x.shape[-1]
    added = rows if residual is None else _rows(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    if out.numel():
        block = min(triton.next_power_of_2(width), WIDEST_BLOCK)
        _rms[(rows.shape[0],)](
            rows,
            added,
            weight.contiguous(),
            out,
            total,
            rows.stride(0),
            added.stride(0),
            eps,
            WIDTH=width,
            OFFSET=offset,
            ADDS=residual is not None,
            BLOCK=block,
        )
    return out, total
