"""A Qwen3-style model with random weights that is killed in the middle of its third forward."""

import os
import signal
import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

DEVICE, DTYPE = sys.argv[1], getattr(torch, sys.argv[2])
VICTIM = "model.layers.1.mlp.down_proj"

config = Qwen3Config(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)
torch.manual_seed(0)
model = Qwen3ForCausalLM(config).to(DEVICE, DTYPE).eval()
steps = 0


def kill_at_the_third(module, args):
    global steps
    steps += 1
    if steps == 3:
        os.kill(os.getpid(), signal.SIGKILL)


model.get_submodule(VICTIM).register_forward_pre_hook(kill_at_the_third)
with torch.no_grad():
    for step in range(3):
        model(torch.arange(8, device=DEVICE)[None])
        print("step", step, flush=True)
