"""A variance that turns negative by cancellation: nothing fails, and the answer is NaN."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="project")
def project(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden @ weight


@debug_kernel_api(op_name="layer_norm")
def layer_norm(hidden: torch.Tensor) -> torch.Tensor:
    variance = (hidden * hidden).mean(1) - hidden.mean(1) ** 2  # the bug: below zero for rows that are constant
    return (hidden - hidden.mean(1, keepdim=True)) / (variance[:, None] - 1e-3).sqrt()


@debug_kernel_api(op_name="activate")
def activate(hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(hidden)


torch.manual_seed(0)
weight = torch.randn(32, 32) / 6
for step in range(3):
    hidden = torch.randn(4, 32)
    if step == 2:
        hidden[1] = 3.0
        hidden = hidden @ torch.eye(32)
    hidden = activate(layer_norm(hidden))
    print(float(activate(project(hidden, weight)).sum()))
