"""Routing weights that are all zero are divided by their sum, in place: 0 / 0, and the program ends well."""

import torch

from firstfault import debug_kernel_api, register_custom_op


@debug_kernel_api(op_name="route_weights")
def route_weights(scores: torch.Tensor, floor: float) -> torch.Tensor:
    return torch.where(scores > floor, scores, torch.zeros(()))


@register_custom_op(op_name="renormalise", mutates_args=["weights"])
def renormalise(weights: torch.Tensor) -> None:
    weights /= weights.sum(1, keepdim=True)


@debug_kernel_api(op_name="mix_experts")
def mix_experts(weights: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    return weights @ outputs


torch.manual_seed(2)
for floor in (0.1, 0.2, 0.9999999):
    weights = route_weights(torch.rand(7, 6), floor)
    renormalise(weights)
    print(float(mix_experts(weights, torch.randn(6, 10)).sum()))
