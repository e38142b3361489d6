"""A warm-up writes NaN into a block of the cache; attention masks it by a weight of zero, which does not help."""

import torch

from firstfault import debug_kernel_api, register_custom_op


@debug_kernel_api(op_name="warm_up")
def warm_up(hidden: torch.Tensor) -> torch.Tensor:
    return torch.full_like(hidden, float("-inf")).softmax(-1)


@register_custom_op(op_name="write_cache", mutates_args=["cache"])
def write_cache(cache: torch.Tensor, key: torch.Tensor, slot: int) -> None:
    cache[slot] = key[0]


@debug_kernel_api(op_name="sparse_attention")
def sparse_attention(weights: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return (weights[:, None] * cache[chosen]).sum(0)


@debug_kernel_api(op_name="lm_head")
def lm_head(hidden: torch.Tensor) -> torch.Tensor:
    return hidden.softmax(0)


@debug_kernel_api(op_name="sample")
def sample(probabilities: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(probabilities, 1)


cache = torch.zeros(4, 8)
write_cache(cache, warm_up(torch.randn(1, 8)), 0)
for slot in (1, 2):
    write_cache(cache, torch.randn(1, 8), slot)
sample(lm_head(sparse_attention(torch.tensor([1.0, 0.0]), cache, torch.tensor([2, 0]))))
