"""A segmentation fault in code that is no boundary, after calls that all came back: none of them is to be blamed."""

import ctypes

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="norm")
def norm(hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(hidden, hidden.shape[1:])


for _ in range(5):
    norm(torch.randn(4, 32))
ctypes.string_at(8)
