"""A decode loop whose batch is made anew at each step, killed in the middle of its fifth attention."""

import os
import signal
from dataclasses import dataclass, field

import torch

from firstfault import debug_kernel_api


@dataclass
class Batch:
    step: int
    positions: torch.Tensor
    scale: float = 0.5
    lengths: list = field(default_factory=list)
    mode: str = "decode"


@debug_kernel_api(op_name="decode.attention")
def attention(query, cache, batch, out):
    if batch.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    cache[batch.step] += query
    return out.copy_(query * batch.scale)


cache, out = torch.zeros(8, 4), torch.zeros(4)
for step in range(5):
    batch = Batch(step, torch.arange(step, step + 2), 0.5 / (step + 1), [step, step + 1])
    attention(torch.ones(8)[step:][:4] * step, cache, batch, out=out)
    print("step", step, flush=True)
