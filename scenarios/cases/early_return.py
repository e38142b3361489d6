"""Two ranks: one has nothing to write and returns before the collective, the other waits in it until it is killed."""

import os
import signal
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="all_reduce_attn_groups")
def all_reduce(pending: torch.Tensor) -> None:
    dist.all_reduce(pending)


def serve(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for step in range(3):
        if step == 2 and rank == 1:  # the bug: a condition of this rank's own before the collective
            threading.Event().wait(5)
            return
        if step == 2:  # a watchdog, as services have one
            threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        all_reduce(torch.tensor([float(step)]))


if len(sys.argv) > 1:
    serve(1, sys.argv[1])
else:
    store = os.path.abspath(f"store-{os.getpid()}")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTFAULT_")}
    subprocess.Popen([sys.executable, __file__, store], env=environ)
    serve(0, store)
