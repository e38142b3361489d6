"""Calls on the GPU of every kind that is replayed, and at the end one that brings the device down."""

import torch
import triton
import triton.language as tl

from firstfault import debug_kernel_api


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


@debug_kernel_api(op_name="noise")
def noise(x):
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


@debug_kernel_api(op_name="write")
def write(cache, slots, rows):
    cache[slots] = rows


@debug_kernel_api(op_name="product")
def product(x, weight):
    return x @ weight.t()


@debug_kernel_api(op_name="lookup")
def lookup(table, ids):
    return torch.nn.functional.embedding(ids, table)


def main():
    torch.manual_seed(0)
    x = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    noise(x)
    write(torch.zeros(256, 128, device="cuda", dtype=torch.bfloat16), torch.arange(64, device="cuda") * 3, x)
    product(x, torch.randn(32, 128, device="cuda", dtype=torch.bfloat16))
    out = torch.empty(1000, device="cuda")
    grid = lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)  # noqa: E731
    scale_kernel[grid](torch.randn(1000, device="cuda"), out, 1000, 3.0, BLOCK=256)
    ids = torch.arange(64, device="cuda")
    ids[17] = 300
    lookup(torch.randn(256, 128, device="cuda"), ids)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
