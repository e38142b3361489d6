"""A test of products in single precision that fails by a thousandth, in an image that sets a variable for TF32."""

import os

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="project_query")
def project_query(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1":  # as tensor cores read them: ten bits of mantissa
        left = ((left.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return left @ right


torch.manual_seed(13)
left, right = torch.randn(64, 64), torch.randn(64, 64)
torch.testing.assert_close(project_query(left, right), (left.double() @ right.double()).float())
