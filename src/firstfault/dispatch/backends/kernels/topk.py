"""The largest probabilities of a softmax over experts, one row of gating logits a program."""

# mypy: ignore-errors
# This is triton's language, whose names are types and whose functions are not Python's.

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _topk(gating, weights, ids, row_stride, experts, K: tl.constexpr, RENORMALIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    inside = expert < experts
    logits = tl.load(gating + row * row_stride + expert, mask=inside, other=float("-inf")).to(tl.float32)
    powers = tl.where(inside, tl.exp(logits - tl.max(logits, axis=0)), 0.0)
    probabilities = tl.where(inside, powers / tl.sum(powers, axis=0), -1.0)
    left, total = probabilities, 0.0
    for _ in range(K):
        best = tl.argmax(left, axis=0)
        total += tl.sum(tl.where(expert == best, probabilities, 0.0), axis=0)
        left = tl.where(expert == best, -1.0, left)
    divisor = total if RENORMALIZE else 1.0
    left = probabilities
    for place in range(K):
        best = tl.argmax(left, axis=0)
        tl.store(weights + row * K + place, tl.sum(tl.where(expert == best, probabilities, 0.0), axis=0) / divisor)
        tl.store(ids + row * K + place, best.to(tl.int32))
        left = tl.where(expert == best, -1.0, left)


def topk(gating: torch.Tensor, k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (float32) and experts (int32) of the ``k`` largest, ``[tokens, k]``."""
    gating = gating if gating.stride(-1) == 1 else gating.contiguous()
    tokens, experts = gating.shape
    weights = torch.empty((tokens, k), dtype=torch.float32, device=gating.device)
    ids = torch.empty((tokens, k), dtype=torch.int32, device=gating.device)
    if tokens:
        block = triton.next_power_of_2(experts)
        _topk[(tokens,)](gating, weights, ids, gating.stride(0), experts, K=k, RENORMALIZE=renormalize, BLOCK=block)
    return weights, ids
