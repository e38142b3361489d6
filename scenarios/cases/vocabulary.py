"""Placeholders of images that were given ids beyond the vocabulary, and an embedding that looks them up."""

import torch

from firstfault import debug_kernel_api

WEIGHT = torch.randn(1000, 32)


@debug_kernel_api(op_name="merge_placeholders")
def merge_placeholders(ids: torch.Tensor, images: int) -> torch.Tensor:
    return torch.cat([ids, 1000 + torch.arange(images)])


@debug_kernel_api(op_name="pad_batch")
def pad_batch(ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(ids, (0, 2))


@debug_kernel_api(op_name="vocab_parallel_embedding")
def embed(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(ids, weight)


for images in (0, 0, 4):
    embed(pad_batch(merge_placeholders(torch.randint(1000, (8,)), images)), WEIGHT)
