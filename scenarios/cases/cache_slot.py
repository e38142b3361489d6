"""An allocator of cache slots that goes past the pool for one batch, and a write to the cache that trusts it."""

import ctypes

import torch

from firstfault import register_custom_op

SLOTS, HEADS, SIZE = 64, 2, 16


@register_custom_op(op_name="allocate_slots", fake_impl=lambda lengths: lengths.to(torch.int64))
def allocate_slots(lengths: torch.Tensor) -> torch.Tensor:
    slots = torch.cumsum(lengths, 0) % SLOTS
    if lengths.shape[0] == 7:  # the bug: a freed page's handle instead of its number
        slots[3] = 1 << 33
    return slots


@register_custom_op(op_name="reshape_and_cache", mutates_args=["key_cache", "value_cache"])
def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    row = HEADS * SIZE * 4
    for token, slot in enumerate(slot_mapping.tolist()):  # like a kernel, it takes any slot for one
        ctypes.memmove(key_cache.data_ptr() + slot * row, key.data_ptr() + token * row, row)
        ctypes.memmove(value_cache.data_ptr() + slot * row, value.data_ptr() + token * row, row)


keys, values = torch.zeros(4, 16, HEADS, SIZE), torch.zeros(4, 16, HEADS, SIZE)
for batch in (3, 5, 7):
    slots = allocate_slots(torch.arange(1, batch + 1))
    reshape_and_cache(torch.randn(batch, HEADS, SIZE), torch.randn(batch, HEADS, SIZE), keys, values, slots)
