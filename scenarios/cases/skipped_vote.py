"""Two ranks: in a step without tokens one leaves out the vote, so that its next collective meets another one's."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="vote_on_batch")
def vote_on_batch(tokens: torch.Tensor) -> None:
    dist.all_reduce(tokens)


@debug_kernel_api(op_name="merge_lengths")
def merge_lengths(lengths: torch.Tensor) -> None:
    dist.all_reduce(lengths)


def serve(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for step in range(4):
        if step != 3 or rank == 0:  # the bug: rank 1 has nothing to run in the last step
            vote_on_batch(torch.tensor([step], dtype=torch.int32))
        merge_lengths(torch.arange(300, dtype=torch.int64))


if len(sys.argv) > 1:
    serve(1, sys.argv[1])
else:
    store = os.path.abspath(f"store-{os.getpid()}")
    other = subprocess.Popen([sys.executable, __file__, store])
    serve(0, store)
    sys.exit(other.wait())
