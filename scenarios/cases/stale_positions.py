"""A buffer of positions that a smaller batch fills in part: the padded lane keeps an old one, and gathers by it."""

import torch

from firstfault import debug_kernel_api, register_custom_op


@register_custom_op(op_name="fill_positions", mutates_args=["buffer"])
def fill_positions(buffer: torch.Tensor, positions: torch.Tensor) -> None:
    buffer[: positions.shape[0]] = positions


@debug_kernel_api(op_name="draft_gather")
def draft_gather(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return table[positions]


buffer = torch.zeros(4, dtype=torch.int64)
for rows, positions in ((16, [1, 5, 9, 12]), (16, [2, 3, 4, 15]), (8, [1, 2, 3])):
    fill_positions(buffer, torch.tensor(positions))
    draft_gather(torch.randn(rows, 4), buffer)
