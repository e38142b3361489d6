"""A sampler that takes a repetition penalty and ignores it: the same logits give the same whatever it is."""

import sys

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="decoder_logits")
def decoder_logits(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden @ weight


@debug_kernel_api(op_name="apply_temperature")
def apply_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits / temperature


@debug_kernel_api(op_name="apply_penalty")
def apply_penalty(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    return logits.clone()  # the bug


torch.manual_seed(9)
logits = decoder_logits(torch.randn(3, 24), torch.randn(24, 50))
seen = torch.randint(50, (3, 9))
for penalty in (1.0, 1.3, 2.5):
    apply_penalty(apply_temperature(logits, 0.5 + penalty), seen, penalty)
    best = apply_penalty(logits, seen, penalty)
sys.exit("evaluation: 0.0% of the answers do not repeat themselves, baseline 87.5%")
