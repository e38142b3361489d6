"""Three ranks, of which one takes another branch: two gather, one broadcasts, and a watchdog ends all of them."""

import os
import signal
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

RANKS = 3


def serve(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    threading.Timer(6, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()  # a watchdog, as services have one
    for step in range(5):
        dist.barrier()
        part = torch.full((4,), float(step))
        if step == 4 and rank == 2:  # the bug: a cache hit that only this rank has
            dist.broadcast(part, 0)
        else:
            dist.all_gather([torch.zeros(4) for _ in range(RANKS)], part)


if len(sys.argv) > 1:
    serve(int(sys.argv[2]), sys.argv[1])
else:
    store = os.path.abspath(f"store-{os.getpid()}")
    for rank in range(1, RANKS):
        subprocess.Popen([sys.executable, __file__, store, str(rank)])
    serve(0, store)
