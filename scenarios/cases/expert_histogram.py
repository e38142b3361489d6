"""Physical expert ids that were not mapped to local ones: the histogram refuses a class beyond those there are."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="gate_scores")
def gate_scores(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden @ weight


@debug_kernel_api(op_name="assign_experts")
def assign_experts(scores: torch.Tensor, local: int, mapped: bool) -> torch.Tensor:
    chosen = scores.topk(2, dim=1).indices
    return chosen % local if mapped else chosen


@debug_kernel_api(op_name="expert_histogram")
def expert_histogram(chosen: torch.Tensor, local: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(chosen, local).sum((0, 1))


torch.manual_seed(4)
weight = torch.randn(20, 48)
for tokens, mapped in ((16, True), (9, True), (31, True), (40, False)):
    expert_histogram(assign_experts(gate_scores(torch.randn(tokens, 20), weight), 12, mapped), 12)
