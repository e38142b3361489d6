"""Calls on the GPU, replayed there and on the CPU: matches, a device that is brought down, and its input made small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROGRAM = Path(__file__).parent / "programs" / "replayed.py"
CLI = [sys.executable, "-c", "from firstfault.cli import main; main()"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    command = [*CLI, "run", "--level", "10", "--dir", "recording", "--", sys.executable, str(PROGRAM)]
    subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300)
    return folder / "recording"


@pytest.fixture(scope="module")
def calls(recording: Path) -> dict[str, int]:
    """The number of each call that was dumped, by the last part of its name."""
    from firstfault.read.find_dumps import every

    return {found.op.rpartition(".")[2]: found.n for found in every(recording)}


def replayed(recording: Path, *words: str, cwd: Path | None = None) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*CLI, "replay", str(recording), *words, "--json"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


@pytest.mark.parametrize("name", ["noise", "write", "product", "scale_kernel"])
def test_it_matches_on_the_gpu(recording: Path, calls: dict[str, int], name: str) -> None:
    status, found = replayed(recording, "--call", str(calls[name]), "--repeat", "3")
    assert (status, found["verdict"], found["device"]) == (0, "MATCH", "cuda:0")
    assert found["calls"][0]["exact"]


def test_it_matches_on_the_cpu_within_the_tolerance(recording: Path, calls: dict[str, int]) -> None:
    status, _ = replayed(recording, "--call", str(calls["product"]), "--device", "cpu")
    assert status == 0


def test_it_is_near_its_reference(recording: Path, calls: dict[str, int]) -> None:
    status, found = replayed(recording, "--call", str(calls["product"]), "--against", "reference")
    assert status == 0
    assert found["calls"][0]["errors"][0]["largest"] > 0


def test_a_device_that_is_brought_down_is_a_crash(recording: Path, calls: dict[str, int]) -> None:
    status, found = replayed(recording, "--call", str(calls["lookup"]), "--repeat", "3")
    [one] = found["calls"]
    assert (status, one["verdict"], one["runs"]) == (1, "CRASHED", 1)
    assert "device-side assert" in one["message"]


def test_its_input_is_made_small(recording: Path, calls: dict[str, int], tmp_path: Path) -> None:
    status, found = replayed(recording, "--call", str(calls["lookup"]), "--minimize", cwd=tmp_path)
    assert status == 1
    assert found["minimal"]["elements"] <= found["minimal"]["original"] // 100
