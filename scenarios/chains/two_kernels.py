"""Two Triton kernels: the routing one writes an expert id that the counting one behind it trusts."""

import torch
import triton
import triton.language as tl

from firstfault import debug_kernel_api

TOKENS, EXPERTS, BAD_ROW = 769, 128, 17


@triton.jit
def _topk_gating(logits, ids, bad_row, N: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, N)
    best = tl.argmax(tl.load(logits + row * N + column), 0)
    best = tl.where(row == bad_row, best + (1 << 30), best)
    tl.store(ids + row, best)


@triton.jit
def _moe_align(ids, counts):
    row = tl.program_id(0)
    expert = tl.load(ids + row)
    tl.atomic_add(counts + expert.to(tl.int64), 1)


@debug_kernel_api(op_name="topk_gating")
def topk_gating(logits: torch.Tensor, bad_row: int) -> torch.Tensor:
    ids = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    _topk_gating[(len(logits),)](logits, ids, bad_row, N=logits.shape[1])
    return ids


@debug_kernel_api(op_name="moe_align")
def moe_align(ids: torch.Tensor, counts: torch.Tensor) -> None:
    _moe_align[(len(ids),)](ids, counts)


@debug_kernel_api(op_name="project")
def project(logits: torch.Tensor) -> torch.Tensor:
    return (logits @ logits.t()).tanh()


def main() -> None:
    torch.manual_seed(0)
    for bad_row in (-1, BAD_ROW):
        logits = torch.randn(TOKENS, EXPERTS, device="cuda")
        counts = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
        moe_align(topk_gating(logits, bad_row), counts)
        project(logits)
    torch.cuda.synchronize()
    print("done", int(counts.sum()))


if __name__ == "__main__":
    main()
