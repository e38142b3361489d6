"""An evaluation that ends two questions below its baseline, which nothing in the calls explains."""

import sys

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="classify")
def classify(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight).softmax(1)


torch.manual_seed(0)
weight = torch.randn(16, 4)
right = sum(int(classify(torch.randn(1, 16), weight).argmax()) == 0 for _ in range(50))
sys.exit(f"accuracy {right / 50:.1%}, baseline {right / 50 + 0.04:.1%}")
