"""Two evaluations with other questions each: no call is to be blamed for that they score differently."""

import sys

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="classify_answer")
def classify_answer(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (hidden @ weight).softmax(1)


torch.manual_seed(int(sys.argv[1]))
for _ in range(20):
    classify_answer(torch.randn(2, 16), torch.ones(16, 4))
