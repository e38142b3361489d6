"""Attention leaves NaN in padded rows; the router then chooses expert 0 for all; the permutation stays unwritten."""

import torch

from firstfault import debug_kernel_api

EXPERTS, CHOICES = 8, 4


@debug_kernel_api(op_name="attention")
def attention(query: torch.Tensor, length: int) -> torch.Tensor:
    scores = torch.full((query.shape[0], 4), 0.0 if length else float("-inf"))
    return scores.softmax(1) @ torch.ones(4, query.shape[1]) * query


@debug_kernel_api(op_name="router")
def router(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight).softmax(1)


@debug_kernel_api(op_name="topk_softmax")
def topk_softmax(probabilities: torch.Tensor) -> torch.Tensor:
    chosen = torch.zeros(probabilities.shape[0], CHOICES, dtype=torch.int32)
    for row, values in enumerate(probabilities.tolist()):
        taken = set()
        for choice in range(CHOICES):
            best, at = -1.0, 0
            for expert, value in enumerate(values):  # NaN is larger than nothing
                if expert not in taken and value > best:
                    best, at = value, expert
            taken.add(at)
            chosen[row, choice] = at
    return chosen


@debug_kernel_api(op_name="moe_permutation")
def moe_permutation(topk_ids: torch.Tensor) -> torch.Tensor:
    places = torch.full((topk_ids.numel(),), 2**31 - 1, dtype=torch.int64)
    at = 0
    for row in topk_ids.tolist():
        for expert in dict.fromkeys(row):
            places[at + row.index(expert)] = at + row.index(expert)
        at += len(row)
    return places


@debug_kernel_api(op_name="finalize_routing")
def finalize_routing(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return rows[places]


torch.manual_seed(0)
weight = torch.randn(16, EXPERTS)
for length in (9, 5, 0):
    hidden = attention(torch.randn(3, 16), length)
    ids = topk_softmax(router(hidden, weight))
    finalize_routing(torch.randn(ids.numel(), 16), moe_permutation(ids))
