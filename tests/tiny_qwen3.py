"""A Qwen3 of two layers with random weights: a model as it is served, in a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def build() -> Any:
    """The same weights each time."""
    from transformers import Qwen3Config, Qwen3ForCausalLM  # two seconds

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    make: Callable[..., Any] = Qwen3ForCausalLM
    return make(config).eval()


def ids() -> torch.Tensor:
    """Something to run it on."""
    return torch.arange(7).unsqueeze(0) + 3
