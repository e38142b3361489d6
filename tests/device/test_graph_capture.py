"""Recording while a CUDA graph is captured: nothing is copied or synchronised, and it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch
from firstfault import debug_kernel_api

@debug_kernel_api(op_name="scale")
def scale(x):
    return x * 2

x = torch.ones(4, device="cuda")
scale(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scale(x)
x.fill_(3)
graph.replay()
torch.cuda.synchronize()
assert y.tolist() == [6.0] * 4
"""


def run(folder: Path, level: int) -> str:
    environ = os.environ | {
        "FIRSTFAULT_LOGLEVEL": str(level),
        "FIRSTFAULT_LOGDEST": str(folder / "log"),
        "FIRSTFAULT_DUMP_DIR": str(folder / "dumps"),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "firstfault" not in done.stderr
    return (folder / "log").read_text()


def test_statistics_are_skipped_with_the_reason(tmp_path: Path) -> None:
    log = run(tmp_path, 5)
    assert log.count("statistics=[skipped: CUDA graph capture in progress]") == 2
    assert log.count("min=1.000000") == 1


def test_dumps_are_skipped_with_the_reason(tmp_path: Path) -> None:
    log = run(tmp_path, 10)
    assert log.count("Tensor dump skipped: CUDA graph capture in progress\n") == 1
    assert len(list((tmp_path / "dumps").iterdir())) == 1


def test_names_and_shapes_are_recorded(tmp_path: Path) -> None:
    assert run(tmp_path, 3).count("SGLang Kernel API Call: scale\n") == 2
