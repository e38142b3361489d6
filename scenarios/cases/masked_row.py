"""A row of attention scores that is masked throughout: its softmax is NaN, and the sampler two calls later refuses."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="scores")
def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ key.T


@debug_kernel_api(op_name="masked_softmax")
def masked_softmax(values: torch.Tensor, length: int) -> torch.Tensor:
    mask = torch.arange(values.shape[1]) >= length
    return values.masked_fill(mask, float("-inf")).softmax(1)


@debug_kernel_api(op_name="combine")
def combine(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return weights @ value


@debug_kernel_api(op_name="lm_head")
def lm_head(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight).softmax(1)


@debug_kernel_api(op_name="sample")
def sample(probabilities: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(probabilities, 1)


torch.manual_seed(0)
keys, values, head = torch.randn(12, 16), torch.randn(12, 16), torch.randn(16, 50)
for length in (12, 7, 0):
    weights = masked_softmax(scores(torch.randn(4, 16), keys), length)
    sample(lm_head(combine(weights, values), head))
