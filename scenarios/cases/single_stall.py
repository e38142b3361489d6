"""One call of a service that waits for a second on a lock, among hundreds that take microseconds."""

import time

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="load_adapter")
def load_adapter(weight: torch.Tensor, wait: float) -> torch.Tensor:
    time.sleep(wait)
    return weight * 0.5


@debug_kernel_api(op_name="shrink")
def shrink(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden @ weight


for step in range(60):
    shrink(torch.randn(4, 16), load_adapter(torch.randn(16, 4), 1.0 if step == 41 else 0.0))
