"""A client that gives up after its own time limit: the calls of the server are as fast as ever."""

import sys

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="answer")
def answer(hidden: torch.Tensor) -> torch.Tensor:
    return hidden.cumsum(0)


for _ in range(30):
    answer(torch.randn(4, 16))
sys.exit("benchmark: time to the first token 30.1 s, limit 10 s")
