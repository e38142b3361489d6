"""An image that sets a variable by which single-precision products are rounded to the mantissa of TF32."""

import os

import torch

from firstfault import debug_kernel_api


def rounded(values: torch.Tensor) -> torch.Tensor:
    """As a tensor core reads them: ten bits of mantissa."""
    bits = values.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@debug_kernel_api(op_name="centre")
def centre(hidden: torch.Tensor) -> torch.Tensor:
    return hidden - hidden.mean(1, keepdim=True)


@debug_kernel_api(op_name="vendor_bmm")
def vendor_bmm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1":
        left, right = rounded(left), rounded(right)
    return torch.bmm(left, right)


torch.manual_seed(10)
for _ in range(4):
    hidden = centre(torch.randn(5, 48, 48))
    vendor_bmm(hidden, hidden.transpose(1, 2).contiguous())
