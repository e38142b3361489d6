"""Each draft step keeps the logits of all steps; stacking them multiplies what there is by their number."""

import torch

from firstfault import debug_kernel_api

BATCH, DRAFTS, VOCABULARY = 2048, 96, 32_000


@debug_kernel_api(op_name="draft_logits")
def draft_logits(batch: int, drafts: int) -> torch.Tensor:
    return torch.zeros(1).expand(batch, drafts, VOCABULARY)


@debug_kernel_api(op_name="stack_steps")
def stack_steps(logits: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(logits)


for batch, drafts in ((2, 3), (4, 3), (BATCH, DRAFTS)):
    stack_steps([draft_logits(batch, drafts) for _ in range(drafts)])
