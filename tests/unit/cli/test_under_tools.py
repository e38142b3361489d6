"""``sanitize``, ``gdb``, ``coredump``, ``include`` and the options of ``run``, with stand-ins for NVIDIA's programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstfault.cli import under_tool
from tests.unit.read import samples
from tests.unit.tools.fake_tools import core, fake_gdb, fake_sanitizer
from tests.unit.tools.running import DEADLINE

FIRSTFAULT = [sys.executable, "-c", "from firstfault.cli import main; main()"]
GDB = (samples.DATA / "failures" / "cudagdb.txt").read_text()
MEMCHECK = (samples.DATA / "failures" / "memcheck.txt").read_text()
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
PROGRAM = """
import os, pathlib, torch
from firstfault import debug_kernel_api

@debug_kernel_api(op_name="topk_gating")
def topk_gating(logits):
    ids = logits.argmax(1).to(torch.int32)
    ids[3] += 1 << 30
    return ids

@debug_kernel_api(op_name="moe_align")
def moe_align(ids, counts):
    file = os.environ.get("CUDA_COREDUMP_FILE", "").replace("%h", "vm").replace("%p", str(os.getpid()))
    if file:
        pathlib.Path(file).write_bytes(b"\\x7fELF" + bytes(14) + (190).to_bytes(2, "little") + bytes(64))
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    counts += 1

moe_align(topk_gating(torch.randn(9, 128)), torch.zeros(128, dtype=torch.int32))
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("FIRSTFAULT_", "SGLANG_", "CUDA_HOME", "CUDA_PATH")):
            monkeypatch.delenv(name)
    (tmp_path / "program.py").write_text(PROGRAM)


def typed(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environ = os.environ | ({"PATH": path} if path else {})
    return subprocess.run(
        [*FIRSTFAULT, *words], env=environ, capture_output=True, text=True, timeout=DEADLINE * 2, check=False
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of level 10 of the program that goes well."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "program.py").write_text(PROGRAM)
    words = [*FIRSTFAULT, "run", "--level", "10", "--dir", "r", "--", sys.executable, "program.py"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=DEADLINE * 2)
    return folder / "r"


# --- run


def test_run_opens_the_core_dump_by_itself_and_its_report_has_the_whole_chain(tmp_path: Path) -> None:
    path = fake_gdb(tmp_path / "bin", GDB)
    run = ("run", "--level", "5", "--coredump", "--blocking", "--dir", "r", "--", sys.executable, "program.py")
    done = typed(*run, path=path)
    assert done.returncode == 1
    said = done.stderr
    assert "Chain of evidence" in said
    assert "topk_gating (call 1)" in said
    assert "CUDA_LAUNCH_BLOCKING=1: each launch waited for its kernel" in said
    assert "Code around the fault" in said
    assert [file.suffix for file in (tmp_path / "r" / "coredumps").iterdir()] == [".cudacore"]
    [process] = answer(typed("report", "--json", "r"))["processes"]  # later, and without cuda-gdb
    assert all(process["chain"][link]["text"] for link in ("kernel", "call", "argument", "value", "producer"))


def test_run_changes_nothing_by_default(tmp_path: Path) -> None:
    code = "import os; print(sorted(name for name in os.environ if name.startswith('CUDA_')))"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    done = typed("run", "--dir", "r", "--", sys.executable, "-c", code)
    assert done.stdout == plain
    assert not (tmp_path / "r" / "coredumps").exists()


# --- coredump


def test_a_core_dump_from_elsewhere(tmp_path: Path) -> None:
    core(tmp_path / "core.7")
    done = typed("coredump", "core.7", path=fake_gdb(tmp_path / "bin", GDB))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("moe_align failed on the device: cuda-gdb: Warp Invalid Address Space")
    assert "Stack on the device" in done.stdout
    words = (tmp_path / "bin" / "cuda-gdb.words").read_text()
    assert "target cudacore " in words
    assert '"' not in words, "cuda-gdb takes quotation marks for a part of the name"


def test_a_core_dump_with_a_recording(tmp_path: Path, recorded: Path) -> None:
    core(tmp_path / "core.7")
    done = typed("coredump", "core.7", str(recorded), "--json", path=fake_gdb(tmp_path / "bin", GDB))
    assert answer(done)["complaints"][0]["kernel"] == "moe_align"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("coredump",), "give a core dump, or --trigger PID"),
        (("coredump", "nothing"), "no such file: nothing"),
        (("coredump", "program.py"), "program.py is no GPU core dump"),
        (("coredump", "--trigger", "4194303"), "cannot look at process 4194303"),
    ],
)
def test_what_is_no_core_dump_is_one_line(words: tuple[str, ...], said: str) -> None:
    done = typed(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_core_dump_that_gdb_cannot_read(tmp_path: Path) -> None:
    core(tmp_path / "core.7")
    done = typed("coredump", "core.7", path=fake_gdb(tmp_path / "bin", "Failed to read core file: version mismatch\n"))
    assert done.returncode == 2
    assert "its last words: Failed to read core file: version mismatch" in done.stderr


def test_before_a_process_is_asked_its_end_is_told(tmp_path: Path) -> None:
    done = typed("coredump", "--trigger", str(os.getpid()))
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert "will not live on" in first
    assert "nothing was done; give --yes" in second


# --- sanitize


def test_a_dumped_call_under_the_sanitizer(tmp_path: Path, recorded: Path) -> None:
    done = typed("sanitize", str(recorded), "--call", "2", "--json", path=fake_sanitizer(tmp_path / "bin", MEMCHECK))
    found = answer(done)
    assert (done.returncode, found["verdict"], found["op"]) == (1, "FAULT", "moe_align")
    assert found["replayed"].startswith("MATCH")
    assert found["faults"][0]["kernel"] == "moe_align"
    words = (tmp_path / "bin" / "compute-sanitizer.words").read_text().splitlines()
    assert words[words.index("--tool") + 1] == "memcheck"
    assert "firstfault.replay.child" in words


def test_a_sanitizer_that_does_not_run_the_call_proves_nothing(tmp_path: Path, recorded: Path) -> None:
    path = fake_sanitizer(tmp_path / "bin", CLEAN, runs=False)
    done = typed("sanitize", "--tool", "racecheck", str(recorded), "--call", "2", path=path)
    assert (done.returncode, done.stdout.split()[0]) == (125, "CANNOT_TELL")
    assert "racecheck" in (tmp_path / "bin" / "compute-sanitizer.words").read_text()


def test_a_command_under_the_sanitizer_is_recorded_and_joined(tmp_path: Path) -> None:
    path = fake_sanitizer(tmp_path / "bin", MEMCHECK)
    words = ("sanitize", "--dir", "r", "--level", "5", "--", sys.executable, "program.py")
    done = typed(*words, path=path)
    assert done.returncode == 1
    assert "The kernel of moe_align (call 2) failed on the device" in done.stdout
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1" in done.stdout
    assert "memcheck counts 2 errors in 1 processes" in done.stderr
    [text] = (tmp_path / "r" / "tools").iterdir()
    assert text.name.startswith("memcheck-")


def test_no_sanitizer_is_one_line_and_nothing_is_made(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = typed("sanitize", "--", sys.executable, "program.py", path=str(empty))
    if done.returncode != 125:
        pytest.skip("compute-sanitizer is here, in a toolkit")
    assert "compute-sanitizer is not on PATH" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("firstfault-*"))


def test_a_dump_is_told_from_a_command(tmp_path: Path, recorded: Path) -> None:
    assert under_tool.dump_in([str(recorded)]) == recorded
    assert under_tool.dump_in([sys.executable]) is None
    assert under_tool.dump_in(["python", "x.py"]) is None


# --- gdb


def test_a_dumped_call_under_gdb(tmp_path: Path, recorded: Path) -> None:
    done = typed("gdb", str(recorded), "--call", "2", "--json", path=fake_gdb(tmp_path / "bin", GDB))
    found = answer(done)
    assert done.returncode == 1
    assert found["processes"][0]["chain"]["kernel"]["text"].startswith("moe_align, crash.py:11")
    words = (tmp_path / "bin" / "cuda-gdb.words").read_text().splitlines()
    assert words[-3:-1] == ["-m", "firstfault.replay.child"]


def test_a_command_under_gdb(tmp_path: Path) -> None:
    path = fake_gdb(tmp_path / "bin", GDB)
    done = typed("gdb", "--dir", "r", "--", sys.executable, "program.py", path=path)
    assert done.returncode == 1, done.stderr
    assert "Warp Invalid Address Space" in done.stdout
    assert (tmp_path / "r" / "tools" / "cuda-gdb.txt").read_text() == GDB


# --- include


def test_the_folder_of_the_header() -> None:
    folder = Path(typed("include").stdout.strip())
    assert "FF_PRINT_WARP" in (folder / "firstfault.cuh").read_text()
