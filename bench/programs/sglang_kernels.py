"""SGLang's own Triton kernels that are given a cache or experts, interpreted on the CPU: ``sglang_kernels.py``.

A prompt is written to a latent cache, extends a prefix, and decodes one token; its experts are applied. The cache has
half a gigabyte for keys and as much for values. Prints ``RESULT`` and a number that depends on all of it.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from typing import Any

import torch

SLOTS, HEADS, GROUPS, WIDTH = 2**21, 4, 2, 64
EXPERTS, TOP, HIDDEN, BLOCK = 32, 2, 64, 16
PREFIX, NEW = 9, 5


def main() -> None:
    """Launch them all."""
    torch.manual_seed(0)
    slots = torch.randint(1000, SLOTS - 1, (PREFIX + NEW,))
    keys, values = (torch.zeros(SLOTS, GROUPS, WIDTH, dtype=torch.bfloat16) for _ in range(2))
    keys[slots], values[slots] = _random(PREFIX + NEW, GROUPS, WIDTH), _random(PREFIX + NEW, GROUPS, WIDTH)
    total = _latent(slots) + _extend(keys, values, slots) + _decode(keys, values, slots) + _experts()
    print(f"RESULT {total:.4f}", flush=True)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def _latent(slots: torch.Tensor) -> float:
    from sglang.kernels.ops.kvcache.mla_buffer import set_mla_kv_buffer_kernel_norope

    cache = torch.zeros(SLOTS, 1, 128, dtype=torch.bfloat16)
    set_mla_kv_buffer_kernel_norope[len(slots), 1](
        cache, _random(len(slots), 1, 128), slots, cache.stride(0), 128, 128, BLOCK=128
    )
    return float(cache[slots].float().abs().sum())


def _extend(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> float:
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    query, out = _random(NEW, HEADS, WIDTH), torch.zeros(NEW, HEADS, WIDTH, dtype=torch.bfloat16)
    starts, prefix = torch.tensor([0, NEW], dtype=torch.int32), torch.tensor([0, PREFIX], dtype=torch.int32)
    new = slots[PREFIX:]
    extend_attention_fwd(
        query, keys[new], values[new], out, keys, values, starts, prefix, slots[:PREFIX],
        None, True, None, NEW, 1.0, 1.0, sm_scale=0.125,
    )  # fmt: skip
    return float(out.float().abs().sum())


def _decode(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> float:
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    splits = 2
    query, out = _random(1, HEADS, WIDTH), torch.zeros(1, HEADS, WIDTH, dtype=torch.bfloat16)
    logits, sums = torch.zeros(1, HEADS, splits, WIDTH), torch.zeros(1, HEADS, splits)
    ends = torch.tensor([0, len(slots)], dtype=torch.int32)
    decode_attention_fwd(
        query, keys, values, out, ends, slots, logits, sums, torch.tensor([splits], dtype=torch.int32), splits,
        0.125, 1.0, 1.0,
    )  # fmt: skip
    return float(out.float().abs().sum())


def _experts() -> float:
    import triton.language as tl
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel

    hidden, weight = _random(NEW, HIDDEN), _random(EXPERTS, 2 * HIDDEN, HIDDEN)
    chosen = torch.randint(0, EXPERTS, (NEW, TOP), dtype=torch.int32)
    out = torch.zeros(NEW, TOP, 2 * HIDDEN, dtype=torch.bfloat16)
    config = {"BLOCK_SIZE_M": BLOCK, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
    invoke_fused_moe_kernel(
        hidden, weight, None, out, None, None, None, torch.ones(NEW, TOP), chosen, *_aligned(chosen), False, TOP,
        config, tl.bfloat16, False, False, False, False, False,
    )  # fmt: skip
    return float(out.float().abs().sum())


def _aligned(chosen: torch.Tensor) -> tuple[Any, ...]:
    """The places in ``chosen`` by expert, filled up to whole blocks; the expert of each block; how many places."""
    places, of = [], []
    flat = chosen.flatten()
    for expert in flat.unique().tolist():
        mine = (flat == expert).nonzero().flatten().tolist()
        places += mine + [len(flat)] * (-len(mine) % BLOCK)
        of += [expert] * -(-len(mine) // BLOCK)
    return tuple(torch.tensor(each, dtype=torch.int32) for each in (places, of, [len(places)]))


if __name__ == "__main__":
    main()
