"""A row of a sliding window that masks all its keys: residuals, which nothing records, carry its NaN to the sampler."""

import torch
from torch import nn

SIZE = 32


class Attention(nn.Module):
    """Attention over the last tokens of a window."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.qkv, self.out, self.window = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE), window

    def forward(self, hidden: torch.Tensor, ages: torch.Tensor) -> torch.Tensor:
        """Of ``(tokens, SIZE)``, and how many tokens ago each was."""
        query, key, value = self.qkv(hidden).chunk(3, -1)
        mask = torch.full((len(hidden), len(hidden)), float("-inf")).triu(1)
        mask = mask.masked_fill(ages[None, :] > self.window, float("-inf"))  # the bug: a row may keep no key
        mixed: torch.Tensor = self.out(torch.softmax(query @ key.T / SIZE**0.5 + mask, -1) @ value)
        return mixed


class Layer(nn.Module):
    """One layer, with its residuals."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(SIZE), Attention(window), nn.Linear(SIZE, SIZE)

    def forward(self, hidden: torch.Tensor, ages: torch.Tensor) -> torch.Tensor:
        """The same."""
        hidden = hidden + self.attention(self.norm(hidden), ages)
        return hidden + torch.relu(self.mlp(self.norm(hidden)))


class Decoder(nn.Module):
    """Token ids to the logits of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, SIZE), nn.Linear(SIZE, 64)
        self.layers = nn.ModuleList([Layer(window) for window in (64, 64, 8, 64)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Of ``(tokens,)``."""
        hidden, ages = self.embed(ids), torch.arange(len(ids)).flip(0)
        for layer in self.layers:
            hidden = layer(hidden, ages)
        logits: torch.Tensor = self.head(hidden[-1:])
        return logits


class Sampler(nn.Module):
    """One token of the logits."""

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """Of ``(1, 64)``."""
        return torch.multinomial(torch.softmax(logits, -1), 1)


torch.manual_seed(0)
decoder, sampler = Decoder().requires_grad_(False), Sampler()
for length in range(6, 12):
    print(int(sampler(decoder(torch.randint(0, 64, (length,))))))
