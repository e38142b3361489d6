"""A block of the cache that was freed is marked by a number beyond the pool, and a table of blocks still names it."""

import torch

from firstfault import debug_kernel_api

BLOCKS = 12


@debug_kernel_api(op_name="free_blocks")
def free_blocks(tables: torch.Tensor, done: int) -> torch.Tensor:
    tables = tables.clone()
    if done >= 0:
        tables[done] = 0xFFFF  # the bug: the row stays in the batch
    return tables


@debug_kernel_api(op_name="paged_decode")
def paged_decode(query: torch.Tensor, kv_cache: torch.Tensor, block_tables: torch.Tensor) -> torch.Tensor:
    keys = kv_cache.flatten(1)[block_tables].flatten(1)
    return query * keys.mean(1, keepdim=True)


cache = torch.randn(BLOCKS, 4, 2, 8)
for rows, done in ((2, -1), (3, -1), (3, 1)):
    paged_decode(torch.randn(rows, 8), cache, free_blocks(torch.randint(BLOCKS, (rows, 5)), done))
