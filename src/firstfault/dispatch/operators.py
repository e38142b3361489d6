"""The operators that have backends: what each is given and gives, and how two of its results are compared.

    OPERATORS["rms_norm"].signature     # "(x, weight, eps)"

Every backend of an operator has the same signature, whatever its kernel's is. Backends may write over the arguments
that ``overwritten`` names, as the kernels of the engines do: only results are to be used after a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


def results(result: Any, *_: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a result as they are."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def routed_weights(result: Any, gating: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    """The weights that a router gave to each expert, one row a token: equal however ties and order fall.

    Args:
        result: weights and ids, both ``[tokens, k]``.
        gating: ``[tokens, experts]``.
    """
    weights, ids = result
    spread = torch.zeros(gating.shape, dtype=torch.float32, device=gating.device)
    return (spread.scatter_add_(1, ids.long().clamp(0, gating.shape[1] - 1), weights.float()),)


def aligned_blocks(result: Any, topk_ids: torch.Tensor, block: int, experts: int, *_: Any) -> tuple[torch.Tensor, ...]:
    """Where tokens were sorted to: the order of an expert's own tokens is free, and so is what lies behind the end.

    Args:
        result: ``sorted_ids``, ``expert_ids`` and ``num_tokens_post_pad``.
        topk_ids: ``[tokens, k]``.
        block: tokens in a block.
        experts: how many there are.
    """
    sorted_ids, expert_ids, total = result
    end = int(total)
    blocks = end // block if block else 0
    placed = sorted_ids[:end].long()
    owner = expert_ids[:blocks].long().repeat_interleave(block)[: placed.numel()]
    place = (owner * (topk_ids.numel() + 1) + placed.clamp(max=topk_ids.numel())).sort().values
    return place.double(), expert_ids[:blocks].double(), total.double().reshape(1)


@dataclass(frozen=True)
class Operator:
    """What all backends of an operator have in common.

    Attributes:
        name: what policies call it.
        signature: its arguments.
        gives: its results, with shapes.
        overwritten: arguments, by name, that a backend may write over.
        comparable: a result and the call's arguments to the tensors by which two backends are compared.
    """

    name: str
    signature: str
    gives: str
    overwritten: Sequence[str] = ()
    comparable: Callable[..., tuple[torch.Tensor, ...]] = results


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("silu_and_mul", "(x[..., 2d])", "[..., d]"),
        Operator("gelu_and_mul", "(x[..., 2d], approximate='none' | 'tanh')", "[..., d]"),
        Operator("rms_norm", "(x[..., n], weight[n], eps)", "[..., n]"),
        Operator(
            "fused_add_rms_norm",
            "(x[..., n], residual[..., n], weight[n], eps)",
            "the normed sum and the sum, both [..., n]",
            ("x", "residual"),
        ),
        Operator("gemma_rms_norm", "(x[..., n], weight[n], eps)", "[..., n], scaled by 1 + weight"),
        Operator(
            "rotary_embedding",
            "(query[t, h, d], key[t, k, d], cos[p, r/2], sin[p, r/2], positions[t], interleaved=False)",
            "query and key, the first r of d rotated",
            ("query", "key"),
        ),
        Operator(
            "mrotary_embedding",
            "(query[t, h, d], key[t, k, d], cos[p, r/2], sin[p, r/2], positions[3, t], section, interleaved=False, "
            "mrope_interleaved=False)",
            "query and key, the first r of d rotated, each part of r/2 by its axis's position",
            ("query", "key"),
        ),
        Operator(
            "topk_softmax",
            "(gating[t, experts], k, renormalize=False)",
            "float32 weights and int32 ids, both [t, k]",
            comparable=routed_weights,
        ),
        Operator(
            "moe_align_block_size",
            "(topk_ids[t, k], block_size, num_experts)",
            "sorted_ids, expert_ids and num_tokens_post_pad, int32",
            comparable=aligned_blocks,
        ),
        Operator(
            "fused_moe",
            "(hidden[t, n], w1[experts, 2i, n], w2[experts, n, i], topk_weights[t, k], topk_ids[t, k])",
            "[t, n]",
        ),
    )
}
