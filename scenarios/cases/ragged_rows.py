"""A length that was never read stays what the memory held; row offsets are summed from it, and a copy follows them."""

import ctypes

import torch

from firstfault import debug_kernel_api

WIDTH = 24


@debug_kernel_api(op_name="read_lengths")
def read_lengths(requests: torch.Tensor, skip: int) -> torch.Tensor:
    lengths = torch.full((requests.shape[0],), 1_700_000_123, dtype=torch.int64)  # as torch.empty may give it
    for row in range(requests.shape[0]):
        if row != skip:  # the bug: the request that was aborted
            lengths[row] = int(requests[row])
    return lengths


@debug_kernel_api(op_name="row_offsets")
def row_offsets(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(torch.cumsum(lengths, 0), (1, 0))


@debug_kernel_api(op_name="unpack_ragged")
def unpack_ragged(packed: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(indptr.shape[0] - 1, WIDTH)
    for row, start in enumerate(indptr.tolist()[:-1]):
        ctypes.memmove(out.data_ptr() + 4 * WIDTH * row, packed.data_ptr() + 4 * WIDTH * start, 4 * WIDTH)
    return out


for lengths, skip in (([3, 1, 4], -1), ([2, 2, 5, 1], -1), ([1, 6, 2], 1)):
    packed = torch.randn(sum(lengths), WIDTH)
    unpack_ragged(packed, row_offsets(read_lengths(torch.tensor(lengths), skip)))
