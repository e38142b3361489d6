"""A dequantisation that leaves out its scale for one layer: nothing fails, but numbers are thousands of times off."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="norm")
def norm(hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(hidden, hidden.shape[1:])


@debug_kernel_api(op_name="dequantised_mm")
def dequantised_mm(hidden: torch.Tensor, weight: torch.Tensor, layer: int) -> torch.Tensor:
    scale = 1.0 if layer == 5 else 1 / 20_000  # the bug
    return (hidden @ weight) * scale


torch.manual_seed(0)
weight = torch.randint(-127, 127, (64, 64)).float() * 10
hidden = torch.randn(4, 64)
for layer in range(8):
    hidden = dequantised_mm(norm(hidden), weight, layer)
