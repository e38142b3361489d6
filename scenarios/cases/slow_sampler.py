"""A sampler that falls back to a loop in Python once a request asks for a grammar: every step after it is slow."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="forward_step")
def forward_step(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(hidden @ weight)


@debug_kernel_api(op_name="pick_tokens")
def pick_tokens(logits: torch.Tensor, grammar: bool) -> torch.Tensor:
    if not grammar:
        return logits.argmax(1)
    allowed = torch.zeros_like(logits)
    for row in range(logits.shape[0]):
        for token in range(0, logits.shape[1], 3):
            allowed[row, token] = logits[row, token]
    return allowed.argmax(1)


torch.manual_seed(6)
weight = torch.randn(600, 600)
for step in range(40):
    pick_tokens(forward_step(torch.randn(8, 600), weight), grammar=step >= 30)
