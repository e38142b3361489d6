"""Two ranks, of which one is killed: the collective of the other says that the connection was closed."""

import os
import signal
import subprocess
import sys

import torch
import torch.distributed as dist

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="coordinate_batch")
def coordinate_batch(tokens: torch.Tensor) -> None:
    dist.all_reduce(tokens)


def serve(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for step in range(4):
        if step == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        coordinate_batch(torch.tensor([float(step)]))


if len(sys.argv) > 1:
    serve(1, sys.argv[1])
else:
    store = os.path.abspath(f"store-{os.getpid()}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTFAULT_")}
    subprocess.Popen([sys.executable, __file__, store], env=environ)
    serve(0, store)
