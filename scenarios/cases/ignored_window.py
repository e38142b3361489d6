"""A backend that takes the window of sliding attention and does not use it; decoding, on another kernel, does."""

import sys

import torch

from firstfault import debug_kernel_api


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int) -> torch.Tensor:
    distance = torch.arange(key.shape[0] - query.shape[0], key.shape[0])[:, None] - torch.arange(key.shape[0])
    hidden = (distance < 0) | (distance >= window)
    return (query @ key.T).masked_fill(hidden, float("-inf")).softmax(1) @ value


@debug_kernel_api(op_name="extend_attention")
def extend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int) -> torch.Tensor:
    return attention(query, key, value, 1 << 20 if sys.argv[1] == "bad" else window)


@debug_kernel_api(op_name="step_attention")
def step(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int) -> torch.Tensor:
    return attention(query, key, value, window)


torch.manual_seed(8)
for tokens in (40, 22):
    query, key, value = torch.randn(3, tokens, 16).unbind()
    extend(query, key, value, 8)
    step(query[-1:], key, value, 8)
