"""A draft model's token that the target model does not know; it replaces padding before it looks the tokens up."""

import torch
from torch import nn

TOKENS, DRAFTED, SIZE = 1000, 100, 32
library = torch.library.Library("drafting", "DEF")
library.define("sample(Tensor logits, Tensor to_target) -> Tensor")
library.impl("sample", lambda logits, to_target: logits.argmax(-1) + to_target[logits.argmax(-1)], "CPU")
library.define("pad(Tensor ids, int size) -> Tensor")
library.impl("pad", lambda ids, size: torch.cat([ids, ids.new_full((size - len(ids),), -1)]), "CPU")


class Target(nn.Module):
    """The model that a draft is made for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, SIZE), nn.Linear(SIZE, DRAFTED)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids, -1 for padding."""
        logits: torch.Tensor = self.head(self.embed(torch.where(ids < 0, 0, ids)))
        return logits


torch.manual_seed(0)
target, to_target = Target().requires_grad_(False), torch.arange(DRAFTED) * 8
to_target[77] = 4096  # the bug
ids = torch.tensor([1, 2, 3])
for step in range(12):
    logits = target(torch.ops.drafting.pad(ids, 8))[:3] + torch.randn(3, DRAFTED)
    logits[1, 77] = 50.0 if step == 9 else -50.0
    ids = torch.ops.drafting.sample(logits, to_target)
