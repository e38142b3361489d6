"""A guest in a CUDA program: captures go on, and what comes after an error is recorded all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.running import CLI, report

START = """
import threading, torch
from firstfault import debug_kernel_api

@debug_kernel_api(op_name="k")
def k(x):
    return x + 1

x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
"""

FIRST_CALL_IN_A_CAPTURE = """
with torch.cuda.graph(graph):
    y = k(x)
graph.replay()
assert y.tolist() == [2.0] * 4
k(x)
torch.cuda.synchronize()
"""

READING_WHILE_ANOTHER_THREAD_CAPTURES = """
@debug_kernel_api(op_name="seen")
def seen(x):
    return x

seen(x)
side = torch.cuda.Stream()
captures, read = threading.Event(), threading.Event()

def work():
    captures.wait()
    with torch.cuda.stream(side):
        seen(x)  # allocates nothing by itself: that would end the other thread's capture without us
    read.set()

thread = threading.Thread(target=work)
thread.start()
with torch.cuda.graph(graph):
    y = x * 2
    captures.set()
    read.wait(60)
thread.join()
graph.replay()
assert y.tolist() == [2.0] * 4
"""

FIRST_CALL_IN_A_THREAD_WITHOUT_A_CONTEXT = """
thread = threading.Thread(target=lambda: k(1))
thread.start()
thread.join()
k(x)
torch.cuda.synchronize()
"""

A_CALL_AFTER_THE_ERROR = """
k(x)
weight = torch.ones(2, 2, device="cuda")
try:
    torch.nn.functional.embedding(torch.tensor([9], device="cuda"), weight)
    torch.cuda.synchronize()
except Exception:
    pass

@debug_kernel_api(op_name="on_the_host")
def on_the_host():
    return 7

assert on_the_host() == 7
"""

A_HANDLED_EXCEPTION = """
@debug_kernel_api(op_name="try_flash")
def try_flash(x):
    raise ImportError("no flash")

try:
    try_flash(x)
except ImportError:
    pass
for _ in range(20):
    k(x)
weight = torch.ones(2, 2, device="cuda")
torch.nn.functional.embedding(torch.tensor([9], device="cuda"), weight)
k(x)
torch.cuda.synchronize()
"""


def run(folder: Path, program: str, level: int) -> subprocess.CompletedProcess[str]:
    command = [*CLI, "run", "--level", str(level), "--dir", str(folder / "recording"), "--"]
    return subprocess.run(
        [*command, sys.executable, "-c", START + program], env=os.environ, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("level", [1, 3, 5, 10])
@pytest.mark.parametrize(
    "program",
    [FIRST_CALL_IN_A_CAPTURE, READING_WHILE_ANOTHER_THREAD_CAPTURES],
    ids=["its first call", "another thread reads"],
)
def test_a_capture_goes_on(tmp_path: Path, program: str, level: int) -> None:
    done = run(tmp_path, program, level)
    assert done.returncode == 0, done.stderr
    assert "no progress markers" not in str(report(tmp_path / "recording"))


def test_markers_wait_for_a_thread_with_a_context(tmp_path: Path) -> None:
    assert run(tmp_path, FIRST_CALL_IN_A_THREAD_WITHOUT_A_CONTEXT, 1).returncode == 0
    (process,) = report(tmp_path / "recording")["processes"]
    assert ["up to k (call 2)" in line for line in process["device"]] == [True]


def test_what_is_called_after_an_error_of_the_device_is_recorded(tmp_path: Path) -> None:
    run(tmp_path, A_CALL_AFTER_THE_ERROR, 3)
    (process,) = report(tmp_path / "recording")["processes"]
    assert process["calls"] == 2


def test_a_call_that_raised_is_not_blamed_for_a_later_fault(tmp_path: Path) -> None:
    assert run(tmp_path, A_HANDLED_EXCEPTION, 1).returncode != 0
    (process,) = report(tmp_path / "recording")["processes"]
    assert "try_flash" not in process["conclusion"]
    assert "unrecorded work after k (call 21)" in process["conclusion"]
