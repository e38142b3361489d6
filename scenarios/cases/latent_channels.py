"""The very first step of a diffusion model that was given masked latents: the convolution has other channels."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="scale_noise")
def scale_noise(latents: torch.Tensor, sigma: float) -> torch.Tensor:
    return latents / float((sigma**2 + 1) ** 0.5)


@debug_kernel_api(op_name="join_mask_latents")
def join_mask_latents(latents: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.cat([latents, mask], 1)


@debug_kernel_api(op_name="conv_in")
def conv_in(latents: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(latents, weight, padding=1)


latents = scale_noise(torch.randn(2, 4, 16, 16), 14.6)
conv_in(join_mask_latents(latents, torch.ones(2, 1, 16, 16)), torch.randn(32, 9, 3, 3))
