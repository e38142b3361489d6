"""One denoising step of a small UNet and a small Flux transformer, random weights: ``diffusers_step.py [device]``."""

import hashlib
import sys

import torch
from diffusers import FluxTransformer2DModel, UNet2DConditionModel

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, norm_num_groups=8,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
).to(device).eval()  # fmt: skip
flux = FluxTransformer2DModel(
    patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
    joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
).to(device).eval()  # fmt: skip


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(device)


with torch.inference_mode():
    noise = unet(random(1, 4, 16, 16), torch.tensor(10).to(device), random(1, 8, 32)).sample
    flow = flux(
        hidden_states=random(1, 16, 4), encoder_hidden_states=random(1, 8, 32), pooled_projections=random(1, 32),
        timestep=torch.tensor([0.5]).to(device), img_ids=torch.zeros(16, 3).to(device),
        txt_ids=torch.zeros(8, 3).to(device),
    ).sample  # fmt: skip
digest = hashlib.sha256(noise.cpu().numpy().tobytes() + flow.cpu().numpy().tobytes())
print("RESULT", digest.hexdigest())
