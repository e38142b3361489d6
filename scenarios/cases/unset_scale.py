"""Scales that still are the smallest number there is when the first batch comes: infinity, then NaN."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="scaled_mm")
def scaled_mm(hidden: torch.Tensor, weight: torch.Tensor, input_scale: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight) * (input_scale * input_scale)


@debug_kernel_api(op_name="softmax")
def softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(1)


@debug_kernel_api(op_name="sample")
def sample(probabilities: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(probabilities, 1)


torch.manual_seed(0)
weight = torch.randn(16, 50)
for scale in (0.5, 0.5, torch.finfo(torch.float32).min):
    sample(softmax(scaled_mm(torch.randn(4, 16), weight, torch.tensor(scale))))
