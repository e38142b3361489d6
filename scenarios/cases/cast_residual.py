"""A residual that one path keeps in single precision, and a kernel that was compiled for bfloat16 only."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="gather_residual")
def gather_residual(hidden: torch.Tensor, keep: bool) -> torch.Tensor:
    return hidden.float() if keep else hidden


@debug_kernel_api(op_name="residual_add_norm")
def residual_add_norm(hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    torch._assert(hidden.dtype is residual.dtype, "no kernel for this combination")
    return torch.nn.functional.rms_norm(hidden + residual, weight.shape, weight)


weight = torch.ones(32, dtype=torch.bfloat16)
for tokens, keep in ((3, False), (8, False), (5, False), (4, True)):
    hidden = torch.randn(tokens, 32).bfloat16()
    residual_add_norm(hidden, gather_residual(hidden, keep), weight)
