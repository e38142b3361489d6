"""``index_put_`` on rows of an int8 state whose offsets are below and beyond 2**31; needs a GPU and 7 GB of it.

Shape, stride and index dtype are those of FlagGems' issue 6411, in which rows from 20972 on were written elsewhere.
"""

import torch

STRIDE, FIRST_BEYOND = 102400, 20972
state = torch.zeros(21000 * STRIDE, dtype=torch.int8, device="cuda").as_strided(
    (21000, 6, 128, 128), (STRIDE, 16384, 128, 1)
)
rows = torch.tensor([FIRST_BEYOND - 1, FIRST_BEYOND, 20999], dtype=torch.int32, device="cuda")
state.index_put_((rows,), torch.ones(3, 6, 128, 128, dtype=torch.int8, device="cuda"))
kept = [bool((state[int(row)] == 1).all()) for row in rows]
print(f"rows {rows.tolist()} hold what was put there: {kept}; rows written in all: {int(state.amax((1, 2, 3)).sum())}")
