"""Padded rows that hold NaN at every step, and are masked; what fails is a look-up in the program's own table."""

import torch

from firstfault import debug_kernel_api, register_custom_op

SIZE, ROWS = 32, 8
UNUSED = 2**31 - 1


@register_custom_op(op_name="decode_attention", mutates_args=["out"])
def decode_attention(query: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    masked = torch.arange(cache.shape[1]) >= lengths[:, None]
    scores = torch.einsum("bd,bnd->bn", query, cache).masked_fill(masked, float("-inf"))
    out.copy_(torch.einsum("bn,bnd->bd", scores.softmax(-1), cache))


@debug_kernel_api(op_name="mask_rows")
def mask_rows(hidden: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    return torch.where(real[:, None], hidden, torch.zeros_like(hidden))


@debug_kernel_api(op_name="varlen_attention")
def varlen_attention(query: torch.Tensor, starts: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(query, float("nan"))
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        out[begin:end] = (query[begin:end] @ query[begin:end].T).softmax(-1) @ query[begin:end]
    return out


@debug_kernel_api(op_name="project")
def project(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden @ weight


torch.manual_seed(0)
cache, weight = torch.zeros(ROWS, 16, SIZE), torch.randn(SIZE, SIZE) / 6
names = {row: f"request {row}" for row in range(6)}
blocks = torch.full((ROWS, 4), UNUSED, dtype=torch.int32)
blocks[:, 0] = torch.arange(ROWS)
for step in range(8):
    real = torch.arange(ROWS) < 6
    lengths = torch.where(real, step + 1, 0)
    out = torch.empty(ROWS, SIZE)
    decode_attention(torch.randn(ROWS, SIZE), cache, lengths, out)
    rows = mask_rows(out, real)
    mixed = varlen_attention(rows + torch.randn(ROWS, SIZE), torch.tensor([0, 2, 2, 6]), blocks)
    print(names[step], float(project(mixed[:6], weight).sum()))
