"""Two builds with the same answers, of which one repacks the weights in every call: what grew is to be named."""

import sys

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="embed_tokens")
def embed_tokens(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table[ids]


@debug_kernel_api(op_name="packed_linear")
def packed_linear(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if sys.argv[1] == "bad":  # the bug: the packed weights are not kept
        for _ in range(30):
            weight = weight.T.contiguous().T.contiguous()
    return hidden @ weight


@debug_kernel_api(op_name="gate")
def gate(hidden: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(hidden)


torch.manual_seed(7)
table, weight = torch.randn(100, 512), torch.randn(512, 512)
for _ in range(25):
    gate(packed_linear(embed_tokens(torch.randint(100, (6,)), table), weight))
