"""What a contract is about is read by the device below level 5 too, in the black box and in CUDA graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.device.running import report

PROGRAM = """
import torch, firstfault
from firstfault import debug_kernel_api
firstfault.contract("align", "ids", index_into="experts")

@debug_kernel_api(op_name="route")
def route(x, ids):
    ids.add_(x)
    return ids

@debug_kernel_api(op_name="align")
def align(ids, experts):
    return ids + 1

x = torch.full((8,), 3, device="cuda", dtype=torch.int32)
ids = torch.zeros_like(x)
def step():
    align(route(x, ids), 8)
"""
EAGER = "for _ in range(4): step()\ntorch.cuda.synchronize()"
GRAPH = """
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    step()
torch.cuda.synchronize()
ids.zero_()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(4): graph.replay()
torch.cuda.synchronize()
"""


def findings(folder: Path, body: str, **environ: str) -> list[dict[str, Any]]:
    """What the report says of contracts."""
    chosen = os.environ | {"FIRSTFAULT_DIR": str(folder / "recording"), "FIRSTFAULT_LOGLEVEL": "3"} | environ
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + body], env=chosen, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    (process,) = report(folder / "recording")["processes"]
    return [finding for finding in process.get("findings", []) if finding["rule"] == "FF701"]


@pytest.mark.parametrize("mode", ["all", "blackbox"])
def test_the_first_call_beyond_the_bound_is_named(tmp_path: Path, mode: str) -> None:
    first = findings(tmp_path, EAGER, FIRSTFAULT_MODE=mode)[0]
    assert (first["op"], first["call"]) == ("align", 6)
    assert "holds 9, beyond 8" in first["text"]


def test_a_replay_is_held_against_it_too(tmp_path: Path) -> None:
    found = findings(tmp_path, GRAPH, FIRSTFAULT_GRAPHS="record")
    assert any("beyond 8" in finding["text"] for finding in found)
