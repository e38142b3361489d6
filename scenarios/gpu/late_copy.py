"""The first kernel writes far before its buffer, the second is harmless, and a copy to the host is told of it."""

import torch
import triton
import triton.language as tl


@triton.jit
def write_before(out):
    tl.store(out - (1 << 38), 1.0)


@triton.jit
def add_one(out):
    at = tl.program_id(0)
    tl.store(out + at, tl.load(out + at) + 1.0)


out = torch.zeros(256, device="cuda")
add_one[(256,)](out)
torch.cuda.synchronize()
write_before[(1,)](out)
add_one[(256,)](out)
print(out.cpu().sum())
