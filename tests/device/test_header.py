"""``firstfault.cuh``, compiled and run: who prints, what an assertion says, and that the compiler stops on one."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import firstfault

INCLUDE = Path(firstfault.__file__).parent / "include"
SOURCE = Path(__file__).parent / "programs" / "header.cu"


def compiled(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("needs nvcc")
    words = [nvcc, "-std=c++17", "-arch=native", f"-I{INCLUDE}", *options, "-o", str(folder / "program"), str(SOURCE)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("header")
    done = compiled(folder)
    assert done.returncode == 0, done.stderr
    return folder / "program"


def run(program: Path, case: str) -> list[str]:
    done = subprocess.run([str(program), case], capture_output=True, text=True, check=False, timeout=120)
    return done.stdout.splitlines()


def test_each_warp_or_group_prints_once(program: Path) -> None:
    lines = run(program, "prints")
    assert lines[-1] == "cudaSuccess"
    kinds = Counter(line.partition(": ")[2] for line in lines)
    assert kinds["of all, 256 threads"] == 2 * 8
    assert kinds["of the group"] == 2 * 2
    assert kinds["without lane 0, by lane 5"] == 2 * 8
    assert kinds["thread 70"] == 2
    assert kinds["thread 90"] == 0, "of a warp the first such lane prints"
    assert "[firstfault] block (1,0,0) warp 7: of all, 256 threads" in lines


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("assert", "block (0,0,0) thread (37,0,0): id < experts does not hold: id 1048576 of 8"),
        ("index", "block (0,0,0) thread (37,0,0): index ids[threadIdx.x] is 1048576, not below 8"),
    ],
)
def test_an_assertion_says_who_and_what_and_stops(program: Path, case: str, said: str) -> None:
    lines = run(program, case)
    assert any(line.startswith("[firstfault] ") and line.endswith(said) for line in lines), lines
    assert lines[-1] in ("cudaErrorLaunchFailure", "cudaErrorIllegalInstruction")


def test_the_compiler_stops_on_a_static_assertion(tmp_path: Path) -> None:
    done = compiled(tmp_path, "-DNOT_ALIGNED")
    assert done.returncode != 0
    assert "kBlock must be a multiple of the warp" in done.stderr


def test_all_of_it_can_be_left_out(tmp_path: Path) -> None:
    assert compiled(tmp_path, "-DFF_OFF").returncode == 0
    assert run(tmp_path / "program", "prints") == ["cudaSuccess"]
