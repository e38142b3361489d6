"""The reference of each operator: plain PyTorch, in float32 inside, rounded once to the dtype of what it was given.

Inputs of float64 are computed in float64, so that the same code is the measure that others are held against.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as nnf

from firstfault.dispatch.operators import OPERATORS
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry


def wide(x: torch.Tensor) -> torch.Tensor:
    """A tensor in the precision that is computed in."""
    return x if x.dtype == torch.float64 else x.float()


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of the two halves of the last dimension."""
    gate, up = wide(x).chunk(2, dim=-1)
    return (nnf.silu(gate) * up).to(x.dtype)


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """``gelu(gate) * up`` of the two halves of the last dimension."""
    gate, up = wide(x).chunk(2, dim=-1)
    return (nnf.gelu(gate, approximate=approximate) * up).to(x.dtype)


def _normed(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * scale


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x²) + eps) * weight`` over the last dimension."""
    return _normed(wide(x), wide(weight), eps).to(x.dtype)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + residual``, taken of the sum before it is rounded, and the sum."""
    total = wide(x) + wide(residual)
    return _normed(total, wide(weight), eps).to(x.dtype), total.to(residual.dtype)


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``rms_norm`` with a weight that is stored as its difference from one."""
    return _normed(wide(x), 1 + wide(weight), eps).to(x.dtype)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The first dimensions of each head rotated.

    Args:
        x: ``[tokens, heads, head_dim]``.
        cos, sin: ``[tokens, rotary_dim / 2]``.
        interleaved: whether pairs are neighbours (GPT-J), and not halves apart (GPT-NeoX).
    """
    cos, sin = wide(cos).unsqueeze(1), wide(sin).unsqueeze(1)
    rotary = 2 * cos.shape[-1]
    turned, rest = wide(x[..., :rotary]), x[..., rotary:]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    return torch.cat((joined.to(x.dtype), rest), dim=-1)


def rotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding of query and key (Su et al., RoFormer)."""
    cos, sin = cos[positions.long()], sin[positions.long()]
    return _rotated(query, cos, sin, interleaved), _rotated(key, cos, sin, interleaved)


def section_axis(section: Sequence[int], mrope_interleaved: bool, device: torch.device) -> torch.Tensor:
    """Which of the three axes of a position turns each pair of dimensions, ``[sum(section)]``.

    In sections, or interleaved as in Qwen3-VL: every third pair is height's and every third width's as far as their
    sections reach, and all others are time's.
    """
    if not mrope_interleaved:
        return torch.repeat_interleave(torch.arange(3, device=device), torch.tensor(list(section), device=device))
    axis = torch.zeros(sum(section), dtype=torch.long, device=device)
    axis[1 : 3 * section[1] : 3] = 1
    axis[2 : 3 * section[2] : 3] = 2
    return axis


def merged(table: torch.Tensor, positions: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    """A table of cosines or sines at positions of three axes: ``[tokens, rotary_dim / 2]``."""
    picked = table[positions.long()]  # [3, tokens, rotary_dim / 2]
    return picked.gather(0, axis.expand(1, *picked.shape[1:])).squeeze(0)


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
    """Multimodal rotary embedding: positions of time, height and width, each for a part of the dimensions."""
    axis = section_axis(section, mrope_interleaved, cos.device)
    cos, sin = merged(cos, positions, axis), merged(sin, positions, axis)
    return _rotated(query, cos, sin, interleaved), _rotated(key, cos, sin, interleaved)


def topk_softmax(gating: torch.Tensor, k: int, renormalize: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` largest probabilities of each token's softmax over the experts, and whose they are."""
    weights, ids = wide(gating).softmax(-1).topk(k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights if weights.dtype == torch.float64 else weights.float(), ids.int()


def moe_align_block_size(
    topk_ids: torch.Tensor, block_size: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens sorted by expert, each expert's padded to whole blocks.

    Gives:
        sorted_ids: places in ``topk_ids`` taken flat, and its size where padded; as long as any routing needs.
        expert_ids: the expert of each block.
        num_tokens_post_pad: how many of ``sorted_ids`` count.
    """
    flat = topk_ids.flatten().long()
    counts = torch.bincount(flat, minlength=num_experts)
    padded = (counts + block_size - 1) // block_size * block_size
    room = flat.numel() + num_experts * (block_size - 1)
    blocks = -(-room // block_size)
    order = flat.argsort(stable=True)
    within = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    sorted_ids = torch.full((room,), flat.numel(), dtype=torch.int32, device=flat.device)
    sorted_ids[(padded.cumsum(0) - padded)[flat[order]] + within] = order.int()
    expert_ids = torch.zeros(blocks, dtype=torch.int32, device=flat.device)
    owners = torch.repeat_interleave(torch.arange(num_experts, device=flat.device), padded // block_size)
    expert_ids[: owners.numel()] = owners.int()
    return sorted_ids, expert_ids, padded.sum().int().reshape(1)


def fused_moe(
    hidden: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
) -> torch.Tensor:
    """Each token through its experts, ``w2 · silu_and_mul(w1 · x)``, weighted and summed."""
    total = torch.zeros(hidden.shape, dtype=wide(hidden).dtype, device=hidden.device)
    for expert in topk_ids.unique().tolist():
        token, place = (topk_ids == expert).nonzero(as_tuple=True)
        inner = silu_and_mul(wide(hidden[token]) @ wide(w1[expert]).T)
        given = inner @ wide(w2[expert]).T
        total.index_add_(0, token, given * topk_weights[token, place].to(given.dtype).unsqueeze(1))
    return total.to(hidden.dtype)


def add(registry: Registry) -> None:
    """Add a reference for every operator."""
    for op in OPERATORS:
        registry.add(Backend(op, Kind.REFERENCE, "reference", globals()[op]))
