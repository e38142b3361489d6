"""A Qwen3 of random weights compiled by ``torch.compile``, and a step of it captured into a CUDA graph; needs a GPU."""

import hashlib

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=1024, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, bos_token_id=0, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
model = Qwen3ForCausalLM(config).to("cuda", torch.bfloat16).eval()
tokens = torch.arange(1, 9, device="cuda")[None]


def step(model: torch.nn.Module) -> torch.Tensor:
    return model(tokens, position_ids=torch.arange(8, device="cuda")[None], use_cache=False).logits


with torch.no_grad():
    compiled = torch.compile(model, fullgraph=False)
    digest = hashlib.sha256(step(compiled).float().cpu().numpy().tobytes())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step(model)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    position = torch.arange(8, device="cuda")[None]
    with torch.cuda.graph(graph):
        out = model(tokens, position_ids=position, use_cache=False).logits
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
digest.update(out.float().cpu().numpy().tobytes())
print("RESULT", digest.hexdigest())
