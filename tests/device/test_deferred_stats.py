"""Statistics without waiting for the device: complete at a clean end, and after a crash for what it had got to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firstfault.read.formats.recording import Recording
from firstfault.record import layout, schema
from tests.device.running import CLI

PRELUDE = """
import os, signal, time, torch
from firstfault import debug_kernel_api

@debug_kernel_api(op_name="scale")
def scale(x, by):
    return x * by

@debug_kernel_api(op_name="log")
def log(x):
    return x.log()

x = torch.arange(1, 1001, device="cuda", dtype=torch.float32)
scale(x, 2)
torch.cuda.synchronize()
"""
ASYNC = {"FIRSTFAULT_STATS": "async", "FIRSTFAULT_LOGLEVEL": "5"}


def run(folder: Path, program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program, recorded into ``folder``, without ``firstfault run``."""
    environ = os.environ | ASYNC | {"FIRSTFAULT_DIR": str(folder / "recording")} | environ
    command = [sys.executable, "-c", PRELUDE + program]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)


def tensors(folder: Path) -> list[schema.Tensor]:
    """The tensors of all calls, in and out, in their order."""
    found: list[schema.Tensor] = []
    for event in Recording(folder / "recording").events(lambda count: None):
        if isinstance(event.record, schema.Call):
            found += [value for value in event.record.args or () if isinstance(value, schema.Tensor)]
        elif isinstance(event.record, schema.Return) and isinstance(event.record.out, schema.Tensor):
            found.append(event.record.out)
    return found


def process_folder(folder: Path) -> Path:
    (found,) = [path for path in (folder / "recording").iterdir() if path.is_dir()]
    return found


def test_a_clean_end_has_all_of_them_in_the_recording(tmp_path: Path) -> None:
    done = run(tmp_path, "for k in range(300): scale(x, k)")
    assert (done.returncode, done.stderr) == (0, "")
    found = tensors(tmp_path)
    assert len(found) == 602
    assert {tensor.statistics for tensor in found} == {None}
    assert [(tensor.min, tensor.max) for tensor in found[-2:]] == [(1.0, 1000.0), (299.0, 299000.0)]
    assert (process_folder(tmp_path) / layout.STATISTICS).exists()
    assert not layout.statistics_page(process_folder(tmp_path)).exists()


def test_the_host_does_not_wait(tmp_path: Path) -> None:
    program = """
torch.cuda._sleep(2_000_000_000)
begun = time.perf_counter()
for k in range(50): scale(x, k)
took = time.perf_counter() - begun
assert not torch.cuda.current_stream().query(), "the device was done already"
torch.cuda.synchronize()
print(took)
"""
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.5
    assert {tensor.statistics for tensor in tensors(tmp_path)} == {None}


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_after_a_sudden_end_the_page_has_what_the_record_lacks(tmp_path: Path, ending: str) -> None:
    run(tmp_path, f"for k in range(20): scale(x, k)\ntorch.cuda.synchronize()\n{ending}")
    try:
        found = tensors(tmp_path)
        assert len(found) == 42
        assert {tensor.statistics for tensor in found} == {None}
        assert found[-1].max == 19000.0
    finally:
        for page in (layout.statistics_page, layout.marker_page):
            page(process_folder(tmp_path)).unlink(missing_ok=True)


def test_run_takes_the_page_in_and_a_call_that_never_completed_stays_pending(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        PRELUDE
        + """
for k in range(10): scale(x, k)
torch.cuda.synchronize()
torch.cuda._sleep(20_000_000_000)
scale(x, 77)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    recording = str(tmp_path / "recording")
    command = [*CLI, "run", "--level", "5", "--dir", recording, "--", sys.executable, str(program)]
    subprocess.run(command, env=os.environ | {"FIRSTFAULT_STATS": "async"}, capture_output=True, timeout=300)
    assert (process_folder(tmp_path) / layout.STATISTICS).exists()
    assert not layout.statistics_page(process_folder(tmp_path)).exists()
    *before, given, result = tensors(tmp_path)
    assert {tensor.statistics for tensor in before} == {None}
    assert str(given.statistics).startswith("[pending") == str(result.statistics).startswith("[pending") is True


def test_more_in_flight_than_the_page_has_entries_is_said(tmp_path: Path) -> None:
    program = """
many = [x] * 60
@debug_kernel_api(op_name="take")
def take(values): return None
torch.cuda._sleep(4_000_000_000)
for k in range(150): take(many)
torch.cuda.synchronize()
"""
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr
    log = subprocess.run([*CLI, "log", str(tmp_path / "recording")], capture_output=True, text=True, timeout=120)
    assert log.stdout.count("statistics=[skipped: the device is too far behind]") >= 60
    assert "[pending" not in log.stdout


def test_capture_and_tensors_on_the_host(tmp_path: Path) -> None:
    program = """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scale(x, 3)
graph.replay()
scale(torch.ones(4), 5)
scale(x.to(torch.complex128), 5)
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, *captured, host, five, complex_, _ = tensors(tmp_path)
    assert [tensor.statistics for tensor in captured] == ["[skipped: CUDA graph capture in progress]"] * 2
    assert (host.max, five.max) == (1.0, 5.0)
    assert complex_.statistics == "[skipped: it cannot be read without waiting for the device]"


@pytest.mark.parametrize("way", ["sync", "async"])
def test_the_program_is_stopped_after_the_first_nan(tmp_path: Path, way: str) -> None:
    program = """
bad = log(scale(x, -1))
torch.cuda.synchronize()
log(bad)
print("went on")
"""
    done = run(tmp_path, program, FIRSTFAULT_STOP_ON_NAN="1", FIRSTFAULT_STATS=way)
    assert done.returncode == 1
    assert "NanFound: log (call 3) gave 1000 NaN in return, and none of its inputs had any" in done.stderr
    assert "went on" not in done.stdout
