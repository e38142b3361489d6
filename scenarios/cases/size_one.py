"""A slice of a padded tensor that counts as contiguous, and a kernel that checks strides strictly."""

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="slice_decode")
def slice_decode(padded: torch.Tensor, tokens: int) -> torch.Tensor:
    return padded[:tokens, :1].contiguous()


@debug_kernel_api(op_name="decode_attention")
def decode_attention(query: torch.Tensor) -> torch.Tensor:
    dense = torch.empty(query.shape).stride()
    assert query.stride() == dense, f"query is not strictly contiguous: stride {query.stride()}"
    return query * 2


for heads in (1, 1, 3):
    decode_attention(slice_decode(torch.randn(1, heads, 64), 1))
