"""A quantiser that packs its scales into integers, and a matrix product that takes single precision."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="quantise")
def quantise(hidden: torch.Tensor, packed: bool) -> torch.Tensor:
    scales = hidden.abs().amax(1, keepdim=True).expand(-1, 4).contiguous()
    return scales.to(torch.uint8).view(torch.int32) if packed else scales


@debug_kernel_api(op_name="scaled_mm")
def scaled_mm(hidden: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if scales.dtype is not torch.float32:
        raise RuntimeError(f"unsupported scale type {scales.dtype} on this architecture")
    return (hidden / scales[:, :1]) @ weight


weight = torch.randn(64, 64)
for packed in (False, False, True):
    hidden = torch.randn(5, 64)
    scaled_mm(hidden, quantise(hidden, packed), weight)
