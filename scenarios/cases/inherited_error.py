"""An error of the device, as the library call reports it that asked next (there is no device here, so it is quoted)."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="sparse_indexer")
def sparse_indexer(hidden: torch.Tensor) -> torch.Tensor:
    return hidden.topk(4, dim=1).values


@debug_kernel_api(op_name="encode_tensor_map")
def encode_tensor_map(hidden: torch.Tensor, failed: bool) -> torch.Tensor:
    if failed:
        message = "CUDA driver error (runtime_utils.hpp:144): 700, an illegal memory access was encountered"
        raise RuntimeError(message)
    return hidden


for step in range(5):
    encode_tensor_map(sparse_indexer(torch.randn(3, 16)), step == 4)
