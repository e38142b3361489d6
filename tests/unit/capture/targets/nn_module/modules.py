"""Modules to record, and what was recorded of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from firstfault.capture.targets import nn_module
from firstfault.record import schema
from tests.unit.recording import Recording

ORIGINAL = nn.Module.__call__


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        found: torch.Tensor = self.act(self.up(x)) * scale
        return found


class Model(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, scale=2.0)
        found: torch.Tensor = self.head(x)
        return found


MODEL_CALLS = [
    "Model",
    "Model.embed",
    "Model.layers.0",
    "Model.layers.0.up",
    "Model.layers.0.act",
    "Model.layers.1",
    "Model.layers.1.up",
    "Model.layers.1.act",
    "Model.head",
    "Model.head.0",
    "Model.head.1",
]
X = torch.arange(12.0).reshape(3, 4)


def names(recording: Recording) -> list[str]:
    """The operators in the order of their calls."""
    return [call.op for call in recording.of(schema.Call)]


def seeded(make: Callable[[], nn.Module]) -> Any:
    """A module with the same weights each time."""
    torch.manual_seed(0)
    return make()


def untouched(make: Callable[[], Any]) -> Any:
    """What ``make`` gives without us."""
    nn_module.uninstall()
    try:
        return make()
    finally:
        nn_module.install(torch)
