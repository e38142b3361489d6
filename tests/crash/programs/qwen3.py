"""A Qwen3 of two layers with random weights, killed in the STEP-th call of MODULE: ``qwen3.py MODULE STEP``."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests import tiny_qwen3


def main(name: str, last: int) -> None:
    model = tiny_qwen3.build()
    seen = 0

    def hook(module: torch.nn.Module, args: Any) -> None:
        nonlocal seen
        seen += 1
        print("step", seen, flush=True)
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()

    model.model.get_submodule(name).register_forward_pre_hook(hook)
    while True:
        with torch.no_grad():
            model(tiny_qwen3.ids())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
