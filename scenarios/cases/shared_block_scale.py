"""A padding row holds NaN; a quantiser with one scale a block spreads it to the rows of real tokens."""

import torch

from firstfault import debug_kernel_api

BLOCK = 8


@debug_kernel_api(op_name="pad_rows")
def pad_rows(hidden: torch.Tensor, stale: float) -> torch.Tensor:
    rows = -hidden.shape[0] % BLOCK
    return torch.cat([hidden, torch.full((rows, hidden.shape[1]), stale)])


@debug_kernel_api(op_name="block_quantise")
def block_quantise(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = hidden.reshape(-1, BLOCK, hidden.shape[1])
    scales = blocks.abs().amax((1, 2)) / 127
    return torch.round(torch.nan_to_num(blocks / scales[:, None, None])).to(torch.int8).reshape(hidden.shape), scales


@debug_kernel_api(op_name="quantised_linear")
def quantised_linear(values: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (values.float() * scales.repeat_interleave(BLOCK)[:, None]) @ weight


@debug_kernel_api(op_name="greedy_tokens")
def greedy_tokens(logits: torch.Tensor) -> torch.Tensor:
    assert not bool(torch.isnan(logits).any()), "logits of a real token are NaN"
    return logits.argmax(1)


torch.manual_seed(3)
weight = torch.randn(12, 30)
for tokens, stale in ((8, 0.0), (5, 0.0), (13, 0.0), (6, float("nan"))):
    values, scales = block_quantise(pad_rows(torch.randn(tokens, 12), stale))
    greedy_tokens(quantised_linear(values, scales, weight)[:tokens])
