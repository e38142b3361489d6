"""Statistics of a batch of one image are divided by n - 1, which is zero: NaN, that the writer of the image sees."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="batch_statistics")
def batch_statistics(latents: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"mean": latents.mean(0), "std": latents.std(0)}


@debug_kernel_api(op_name="modulate")
def modulate(latents: torch.Tensor, statistics: dict[str, torch.Tensor]) -> torch.Tensor:
    return (latents - statistics["mean"]) / (statistics["std"] + 1e-3)


@debug_kernel_api(op_name="decode_latents")
def decode_latents(latents: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(latents)


@debug_kernel_api(op_name="write_image")
def write_image(image: torch.Tensor) -> bytes:
    if not bool(image.isfinite().all()):
        raise ValueError("cannot convert float NaN to integer")
    return bytes((image.flatten() * 255).to(torch.uint8).tolist())


torch.manual_seed(12)
for images in (4, 2, 1):
    latents = torch.randn(images, 3, 8, 8)
    write_image(decode_latents(modulate(latents, batch_statistics(latents))))
