"""Four programs of eight elements each, the third of which has an index out of bounds: which of them print."""

import torch
import triton
import triton.language as tl

from firstfault.triton_checks import check_index, print_if


@triton.jit
def gather(ids, table, out, rows, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    index = check_index(tl.load(ids + at, mask=inside, other=0), rows, inside, "row ")
    value = tl.load(table + index, mask=inside & (index < rows), other=0)
    print_if(tl.max(value, 0) > 90, tl.max(value, 0), "large ")
    tl.store(out + at, value, mask=inside)


ids = torch.arange(32, device="cuda", dtype=torch.int32)
ids[20] = 4096
table = torch.arange(100, device="cuda", dtype=torch.int32)
table[8] = 99
out = torch.empty(32, device="cuda", dtype=torch.int32)
gather[(4,)](ids, table, out, 100, 32, BLOCK=8)
torch.cuda.synchronize()
