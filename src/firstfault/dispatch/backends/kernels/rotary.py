"""Rotary position embeddings; with an axis for each pair of dimensions, multimodal ones."""

# mypy: ignore-errors
# This is triton's language, whose names are types and whose functions are not Python's.

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rotate(
    x,
    out,
    cos,
    sin,
    positions,
    axis,
    token_stride,
    head_stride,
    cos_stride,
    sin_stride,
    axis_stride,
    heads,
    size,
    pairs,
    INTERLEAVED: tl.constexpr,
    AXES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    inside = pair < pairs
    if AXES:
        of = tl.load(axis + pair, mask=inside, other=0)
        position = tl.load(positions + of * axis_stride + token, mask=inside, other=0).to(tl.int64)
    else:
        position = tl.load(positions + token).to(tl.int64) + tl.zeros((BLOCK,), dtype=tl.int64)
    c = tl.load(cos + position * cos_stride + pair, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + position * sin_stride + pair, mask=inside, other=0.0).to(tl.float32)
    first = 2 * pair if INTERLEAVED else pair
    second = 2 * pair + 1 if INTERLEAVED else pair + pairs
    base = x + token * token_stride + head * head_stride
    a = tl.load(base + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(base + second, mask=inside, other=0.0).to(tl.float32)
    target = out + (token * heads + head) * size
    tl.store(target + first, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(target + second, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


def rotate(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool,
    axis: torch.Tensor | None = None,
) -> torch.Tensor:
    """The heads of ``x`` with their first dimensions rotated.

    Args:
        x: ``[tokens, heads, head_dim]``.
        cos, sin: ``[positions, rotary_dim / 2]``.
        positions: ``[tokens]``, or ``[3, tokens]`` where ``axis`` is given.
        interleaved: whether pairs are neighbours, and not halves apart.
        axis: which row of positions turns each pair, ``[rotary_dim / 2]``.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    cos, sin = (table if table.stride(-1) == 1 else table.contiguous() for table in (cos, sin))
    positions = positions.contiguous()
    tokens, heads, size = x.shape
    pairs = cos.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    out[..., 2 * pairs :] = x[..., 2 * pairs :]
    _rotate[(tokens, heads)](
        x,
        out,
        cos,
        sin,
        positions,
        positions if axis is None else axis,
        x.stride(0),
        x.stride(1),
        cos.stride(0),
        sin.stride(0),
        positions.stride(0) if axis is not None else 0,
        heads,
        size,
        pairs,
        INTERLEAVED=interleaved,
        AXES=axis is not None,
        BLOCK=triton.next_power_of_2(pairs),
    )
    return out
