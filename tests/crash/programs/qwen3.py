"""A Qwen3 of two layers with random weights, killed in the STEP-th call of MODULE: ``qwen3.py MODULE STEP``."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def build() -> Any:
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


def main(name: str, last: int) -> None:
    model = build()
    seen = 0

    def hook(module: torch.nn.Module, args: Any) -> None:
        nonlocal seen
        seen += 1
        print("step", seen, flush=True)
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()

    model.model.get_submodule(name).register_forward_pre_hook(hook)
    while True:
        with torch.no_grad():
            model(torch.arange(7).unsqueeze(0) + 3)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
