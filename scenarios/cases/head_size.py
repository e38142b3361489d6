"""A split of the packed projection that takes the wrong head size for one model path; the rotation refuses it."""

import torch

from firstfault import debug_kernel_api

HEADS, KV_HEADS, SIZE = 8, 2, 64


@debug_kernel_api(op_name="split_qkv")
def split_qkv(packed: torch.Tensor, draft: bool) -> torch.Tensor:
    size = SIZE // 2 if draft else SIZE
    return packed[:, : HEADS * size].reshape(-1, HEADS, size)


@debug_kernel_api(op_name="apply_rotation")
def apply_rotation(query: torch.Tensor, cosine: torch.Tensor) -> torch.Tensor:
    return query * cosine[: query.shape[0], None, :]


cosine = torch.randn(128, SIZE)
for tokens, draft in ((5, False), (9, False), (7, False), (6, True)):
    packed = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * SIZE)
    apply_rotation(split_qkv(packed, draft), cosine)
