"""A hundred calls fill the disk; then FILE is taken off it, and one more call is the end: ``emptying.py FILE``."""

import os
import signal
import sys
import threading

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="step")
def step(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@debug_kernel_api(op_name="last")
def last(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
    return x


if __name__ == "__main__":
    found = torch.zeros(4)
    for _ in range(100):
        found = step(found)
    os.unlink(sys.argv[1])
    last(found)
