"""Greedy decoding with a Qwen3 of random weights: ``python transformers_decode.py [cpu|cuda]``."""

import hashlib
import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=1024, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, bos_token_id=0, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
model = Qwen3ForCausalLM(config).to(device, torch.bfloat16).eval()
prompt = torch.arange(1, 9, device=device)[None]
with torch.inference_mode():
    tokens = model.generate(prompt, max_new_tokens=32, min_new_tokens=32, do_sample=False)
print("RESULT", hashlib.sha256(tokens.cpu().numpy().tobytes()).hexdigest())
