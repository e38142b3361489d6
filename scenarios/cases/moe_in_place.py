"""Two kernels that return nothing: a routing step writes one bad expert id, and the align step faults on it."""

import ctypes

import torch

from firstfault import debug_kernel_api

TOKENS, EXPERTS = 96, 32


@debug_kernel_api(op_name="topk_gating")
def topk_gating(logits: torch.Tensor, ids: torch.Tensor, bad_row: int) -> None:
    chosen = logits.argmax(1).tolist()
    for row, expert in enumerate(chosen):  # raw stores: torch does not see them, as it sees no kernel's
        value = expert + (1 << 30 if row == bad_row else 0)
        ctypes.c_int32.from_address(ids.data_ptr() + 4 * row).value = value


@debug_kernel_api(op_name="moe_align")
def moe_align(ids: torch.Tensor, counts: torch.Tensor) -> None:
    for expert in ids.tolist():
        ctypes.c_int32.from_address(counts.data_ptr() + 4 * expert).value += 1


for bad_row in (-1, 17):
    ids, counts = torch.zeros(TOKENS, dtype=torch.int32), torch.zeros(EXPERTS, dtype=torch.int32)
    topk_gating(torch.randn(TOKENS, EXPERTS), ids, bad_row)
    moe_align(ids, counts)
