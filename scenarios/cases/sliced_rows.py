"""A rotation that reads rows as if they were dense: the build that passes slices is silently wrong."""

import sys

import torch

from firstfault import debug_kernel_api

HEADS, SIZE = 6, 32


@debug_kernel_api(op_name="take_rope_part")
def take_rope_part(query: torch.Tensor) -> torch.Tensor:
    part = query[:, :, SIZE // 2 :]
    return part if sys.argv[1] == "bad" else part.contiguous()


@debug_kernel_api(op_name="fused_rotation")
def fused_rotation(part: torch.Tensor, cosine: torch.Tensor) -> torch.Tensor:
    dense = torch.as_strided(part, part.shape, torch.empty(part.shape).stride(), part.storage_offset())
    return dense * cosine[: part.shape[0], None]


@debug_kernel_api(op_name="score")
def score(part: torch.Tensor) -> torch.Tensor:
    return part.flatten(1) @ part.flatten(1).T


torch.manual_seed(5)
cosine = torch.rand(64, SIZE // 2)
for tokens in (5, 9, 3):
    score(fused_rotation(take_rope_part(torch.randn(tokens, HEADS, SIZE)), cosine))
