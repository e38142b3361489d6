"""FlashInfer's normalisation and activation kernels, which it compiles when they are first called; needs a GPU."""

import hashlib

import flashinfer
import torch

torch.manual_seed(0)
x = torch.randn(32, 256, device="cuda", dtype=torch.bfloat16)
weight = torch.ones(256, device="cuda", dtype=torch.bfloat16)
y = flashinfer.rmsnorm(x, weight)
residual = torch.zeros_like(x)
flashinfer.fused_add_rmsnorm(y, residual, weight)
z = flashinfer.silu_and_mul(y)
print("RESULT", hashlib.sha256(z.float().cpu().numpy().tobytes()).hexdigest())
