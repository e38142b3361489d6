"""A softmax over nothing gives NaN; three calls on, what compares with it makes an index that no expert has."""

import torch
import triton
import triton.language as tl

from firstfault import debug_kernel_api

TOKENS, WIDTH, EXPERTS = 256, 64, 16
NOTHING = 1 << 30
"""What the choice stands at before the first comparison, which NaN never wins."""


@triton.jit
def _choose(probabilities, ids, nothing, N: tl.constexpr):
    row = tl.program_id(0)
    best = 0.0
    chosen = nothing
    for column in range(N):
        value = tl.load(probabilities + row * N + column)
        chosen = tl.where(value > best, column, chosen)
        best = tl.where(value > best, value, best)
    tl.store(ids + row, chosen)


@triton.jit
def _scatter(ids, counts):
    row = tl.program_id(0)
    tl.atomic_add(counts + tl.load(ids + row).to(tl.int64), 1)


@debug_kernel_api(op_name="attention")
def attention(query: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    scores = query @ query.t() / query.shape[1] ** 0.5
    outside = torch.arange(len(query), device=query.device)[None, :] >= lengths[:, None]
    return scores.masked_fill(outside, float("-inf")).softmax(1) @ query


@debug_kernel_api(op_name="project")
def project(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden @ weight


@debug_kernel_api(op_name="router_softmax")
def router_softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(1)


@debug_kernel_api(op_name="choose_expert")
def choose_expert(probabilities: torch.Tensor) -> torch.Tensor:
    ids = torch.empty(len(probabilities), dtype=torch.int32, device=probabilities.device)
    _choose[(len(probabilities),)](probabilities, ids, NOTHING, N=probabilities.shape[1])
    return ids


@debug_kernel_api(op_name="expert_count")
def expert_count(ids: torch.Tensor, counts: torch.Tensor) -> None:
    _scatter[(len(ids),)](ids, counts)


def main() -> None:
    torch.manual_seed(0)
    weight = torch.randn(WIDTH, EXPERTS, device="cuda")
    for shortest in (1, 0):  # a sequence without tokens has nothing to attend to
        lengths = torch.full((TOKENS,), 9, device="cuda")
        lengths[100] = shortest
        hidden = attention(torch.randn(TOKENS, WIDTH, device="cuda"), lengths)
        counts = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
        expert_count(choose_expert(router_softmax(project(hidden, weight))), counts)
    torch.cuda.synchronize()
    print("done", int(counts.sum()))


if __name__ == "__main__":
    main()
