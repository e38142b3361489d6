"""Two ranks: the shard of one is empty and its product fails; the other waits in the reduction until it is ended."""

import os
import signal
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="shard_experts")
def shard_experts(weights: torch.Tensor, rank: int, uneven: bool) -> torch.Tensor:
    half = weights.shape[0] // 2
    return weights[half + 1 :] if rank and uneven else weights[half:] if rank else weights[:half]


@debug_kernel_api(op_name="project_experts")
def project_experts(hidden: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    return hidden @ shard


def serve(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for step in range(4):
        hidden = project_experts(torch.randn(3, 8), shard_experts(torch.randn(16, 12), rank, step == 3))
        dist.all_reduce(hidden)


if len(sys.argv) > 1:
    threading.Timer(60, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    try:
        serve(1, sys.argv[1])
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        threading.Event().wait(4)  # its clean-up, during which the other rank goes on waiting
        os._exit(1)
else:
    store = os.path.abspath(f"store-{os.getpid()}")
    other = subprocess.Popen([sys.executable, __file__, store])
    threading.Timer(12, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    serve(0, store)
    sys.exit(other.wait())
