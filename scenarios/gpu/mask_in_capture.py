"""A mask as an index, which asks the device how many there are, in the middle of a capture."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="keep_positive")
def keep_positive(values: torch.Tensor) -> torch.Tensor:
    return values[values > 0]


@debug_kernel_api(op_name="scale_values")
def scale_values(values: torch.Tensor) -> torch.Tensor:
    return values * 2


values = torch.randn(64, device="cuda")
keep_positive(scale_values(values))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    keep_positive(scale_values(values))
