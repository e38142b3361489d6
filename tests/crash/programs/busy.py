"""Calls without end until the disk is full, and as many again: ``busy.py CALLS STATUS``; prints what it computed."""

import sys

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="step")
def step(x: torch.Tensor, *, index: int) -> torch.Tensor:
    return (x * 1.01 + index).sin()


def main(calls: int, status: int) -> None:
    x = torch.arange(64.0)
    for index in range(calls):
        x = step(x, index=index)
    print(x.double().sum().item())
    sys.exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
