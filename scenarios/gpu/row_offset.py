"""A kernel that multiplies row and width in 32 bits: with the rows of speculation the offset turns negative."""

import torch
import triton
import triton.language as tl

WIDTH = 151_936


@triton.jit
def fill_rows(out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        tl.store(out + row * width + column, 1, mask=column < width)


for rows in (963, 963, 963 * 16):
    out = torch.zeros(rows, WIDTH, dtype=torch.int8, device="cuda")
    fill_rows[(rows,)](out, WIDTH, BLOCK=4096)
print(int(out[-1].sum()))
