"""One forward and greedy tokens of a small Qwen3: ``transformers_backends.py cpu|cuda LOGITS_FILE``.

Built so that norms, gated activations and rotations are as in the model; weights are random, the same each time.
"""

import hashlib
import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

device, logits_file = sys.argv[1], sys.argv[2]
config = Qwen3Config(
    vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=2, head_dim=64, bos_token_id=0, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
torch.manual_seed(0)
weights = {name: torch.randn(value.shape) * 0.05 for name, value in Qwen3ForCausalLM(config).state_dict().items()}
model = Qwen3ForCausalLM(config)
model.load_state_dict({name: value + 1 if "norm" in name else value for name, value in weights.items()})
model = model.to(torch.bfloat16).to(device).eval()
prompt = torch.arange(1, 65)[None].to(device)
with torch.inference_mode():
    logits = model(prompt).logits
    tokens = model.generate(prompt, max_new_tokens=16, min_new_tokens=16, do_sample=False)
torch.save(logits.to("cpu").to(torch.float32), logits_file)
print("RESULT", hashlib.sha256(tokens.cpu().numpy().tobytes()).hexdigest()[:16], flush=True)
