"""A projection whose sums pass what half precision holds: infinity, then NaN, then a check that stops."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="gelu_gate")
def gelu_gate(hidden: torch.Tensor, boost: float) -> torch.Tensor:
    return torch.nn.functional.gelu(hidden.float()).mul(boost).half()


@debug_kernel_api(op_name="down_projection")
def down_projection(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (hidden.float() @ weight.float()).half()


@debug_kernel_api(op_name="rms")
def rms(hidden: torch.Tensor) -> torch.Tensor:
    wide = hidden.float()
    return (wide / wide.pow(2).mean(1, keepdim=True).sqrt()).half()


@debug_kernel_api(op_name="clip_gradients")
def clip_gradients(hidden: torch.Tensor) -> torch.Tensor:
    if not bool(torch.isfinite(hidden.float()).all()):
        raise FloatingPointError("the gradient norm is not finite")
    return hidden.clamp(-1, 1)


torch.manual_seed(1)
weight = torch.ones(96, 40).half() * 3
for boost in (1.0, 4.0, 900.0):
    clip_gradients(rms(down_projection(gelu_gate(torch.rand(5, 96).half() + 1, boost), weight)))
