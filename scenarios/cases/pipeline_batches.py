"""Two stages of a pipeline that build another batch each: the second views what it received by its own count."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

from firstfault import debug_kernel_api

READY = ((4, 4), (6, 6), (5, 5), (7, 3))  # the bug: in the last step one stage admits a request that the other does not


@debug_kernel_api(op_name="first_stage")
def first_stage(hidden: torch.Tensor) -> torch.Tensor:
    return torch.tanh(hidden)


@debug_kernel_api(op_name="rotate_heads")
def rotate_heads(query: torch.Tensor, tokens: int) -> torch.Tensor:
    return query.view(tokens, -1, 16)


def serve(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for sent, counted in READY:
        if rank == 0:
            hidden = first_stage(torch.randn(sent, 64))
            dist.send(torch.tensor([*hidden.shape]), 1)
            dist.send(hidden, 1)
        else:
            shape = torch.zeros(2, dtype=torch.int64)
            dist.recv(shape, 0)
            hidden = torch.zeros(*shape.tolist())
            dist.recv(hidden, 0)
            rotate_heads(hidden.flatten(), counted)


if len(sys.argv) > 1:
    serve(1, sys.argv[1])
else:
    store = os.path.abspath(f"store-{os.getpid()}")
    other = subprocess.Popen([sys.executable, __file__, store])
    serve(0, store)
    sys.exit(other.wait())
