"""A routing step that writes one bad expert id, and an align step that faults on it: a real segfault on CPU.

firstfault run --level 5 -- python examples/crash.py
"""

import ctypes

import torch

from firstfault import register_custom_op

EXPERTS = 128


def _ids_like(logits: torch.Tensor) -> torch.Tensor:
    return torch.empty(logits.shape[0], dtype=torch.int32, device=logits.device)


@register_custom_op(op_name="topk_gating", fake_impl=_ids_like)
def topk_gating(logits: torch.Tensor) -> torch.Tensor:
    ids = logits.argmax(dim=1).to(torch.int32)
    if logits.shape[0] == 769:  # the bug: one batch size takes a path that overflows
        ids[17] += 1 << 30
    return ids


@register_custom_op(op_name="moe_align", mutates_args=["counts"])
def moe_align(ids: torch.Tensor, counts: torch.Tensor) -> None:
    base = counts.data_ptr()
    for expert in ids.tolist():  # like a kernel, it trusts the ids
        ctypes.c_int32.from_address(base + 4 * expert).value += 1


def serve() -> None:
    torch.manual_seed(0)
    for batch in (64, 256, 769):
        ids = topk_gating(torch.randn(batch, EXPERTS))
        counts = torch.zeros(EXPERTS, dtype=torch.int32)
        moe_align(ids, counts)
        print(f"batch of {batch}: busiest expert has {int(counts.max())} tokens", flush=True)


if __name__ == "__main__":
    serve()
