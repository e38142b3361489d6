"""Two kernels: routing writes one expert id that is none, and the align step, one kernel later, faults on it."""

import torch
import triton
import triton.language as tl

TOKENS, EXPERTS = 769, 128


@triton.jit
def topk_gating(logits, topk_ids, bad_row, EXPERTS: tl.constexpr):
    row = tl.program_id(0)
    values = tl.load(logits + row * EXPERTS + tl.arange(0, EXPERTS))
    expert = tl.argmax(values, 0)
    tl.store(topk_ids + row, tl.where(row == bad_row, expert + (1 << 30), expert))


@triton.jit
def moe_align(topk_ids, counts):
    expert = tl.load(topk_ids + tl.program_id(0))
    tl.atomic_add(counts + expert.to(tl.int64), 1)


for bad_row in (-1, -1, 17):
    logits = torch.randn(TOKENS, EXPERTS, device="cuda")
    topk_ids = torch.zeros(TOKENS, dtype=torch.int32, device="cuda")
    counts = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
    topk_gating[(TOKENS,)](logits, topk_ids, bad_row, EXPERTS=EXPERTS)
    moe_align[(TOKENS,)](topk_ids, counts)
    for _ in range(5):
        logits = logits.tanh()
print(int(counts.sum()))
