"""``silu(gate) * up`` and ``gelu(gate) * up`` of the two halves of each row."""

# mypy: ignore-errors
# This is triton's language, whose names are types and whose functions are not Python's.

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
SILU, GELU, GELU_TANH = 0, 1, 2


@triton.jit
def _gated(x, out, row_stride, out_stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * row_stride + width + column, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == 0:
        active = gate / (1.0 + tl.exp(-gate))
    elif ACTIVATION == 1:
        active = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate / (1.0 + tl.exp(-2.0 * inner))  # 0.5 * (1 + tanh(inner)), which triton has no tanh for
    tl.store(out + row * out_stride + column, (active * up).to(out.dtype.element_ty), mask=inside)


def gated(x: torch.Tensor, activation: int) -> torch.Tensor:
    """An activation of one half of the last dimension times the other half."""
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    width = x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    if out.numel():
        grid = (rows.shape[0], triton.cdiv(width, BLOCK))
        _gated[grid](rows, out, rows.stride(0), width, width, ACTIVATION=activation, BLOCK=BLOCK)
    return out
