"""The index that a graph was captured with is dropped; its memory goes to another tensor, by which replays gather."""

import gc

import torch
import triton
import triton.language as tl

from firstfault import debug_kernel_api

ROWS = 1 << 18


@triton.jit
def gather(table, index, out):
    at = tl.program_id(0)
    row = tl.load(index + at)
    tl.store(out + at, tl.load(table + row))


@debug_kernel_api(op_name="gather_rows")
def gather_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(index.shape[0], device="cuda")
    gather[(index.shape[0],)](table, index, out)
    return out


@debug_kernel_api(op_name="draw_noise")
def draw_noise(count: int) -> torch.Tensor:
    return torch.full((count,), 1 << 38, dtype=torch.int64, device="cuda")


table = torch.randn(1024, device="cuda")
index = torch.arange(ROWS, device="cuda") % 1024
gather_rows(table, index)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = gather_rows(table, index)
graph.replay()
torch.cuda.synchronize()
del index  # the bug
gc.collect()  # triton's compiler keeps what its launch was given until then
noise = [draw_noise(ROWS) for _ in range(4)]
graph.replay()
print(float(out.sum()))
