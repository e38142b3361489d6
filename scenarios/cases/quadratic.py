"""Scores of every token by every token, which a long prompt makes too large for any machine."""

import torch

from firstfault import debug_kernel_api

HEADS = 32


@debug_kernel_api(op_name="attention_scores")
def attention_scores(query: torch.Tensor, heads: int) -> torch.Tensor:
    tokens = query.shape[0]
    return torch.empty(heads, tokens, tokens, dtype=torch.float32)


for tokens in (16, 64, 3 << 20):
    attention_scores(torch.zeros(tokens, 4), HEADS)
