"""GPU core dumps: the variables, the files, the pipe."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from firstfault.errors import UsageError
from firstfault.tools import core_dumps, post_mortem, programs
from tests.unit.tools.fake_tools import core, fake_gdb


def test_the_variables_are_light_and_leave_the_program_its_own_end(tmp_path: Path) -> None:
    found = core_dumps.prepared(tmp_path, {})
    assert found["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == found["CUDA_ENABLE_USER_TRIGGERED_COREDUMP"] == "1"
    assert "skip_global_memory" in found["CUDA_COREDUMP_GENERATION_FLAGS"]
    assert "skip_abort" in found["CUDA_COREDUMP_GENERATION_FLAGS"]
    assert found["CUDA_COREDUMP_FILE"] == f"{tmp_path}/coredumps/%h-%p.cudacore"
    assert stat.S_IMODE((tmp_path / "coredumps").stat().st_mode) == 0o700
    chosen = core_dumps.prepared(tmp_path, {"CUDA_COREDUMP_GENERATION_FLAGS": "skip_local_memory"})
    assert chosen["CUDA_COREDUMP_GENERATION_FLAGS"] == "skip_local_memory"


def test_only_core_dumps_of_devices_are_collected_and_pipes_are_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "coredumps"
    first = core(folder / "vm-12.cudacore")
    (folder / "vm-13.cudacore").write_bytes(b"\x7fELF" + bytes(60))
    (folder / "notes").write_text("x")
    os.mkfifo(folder / "pipe.vm.12")
    assert core_dumps.collected(tmp_path) == [first]
    assert not (folder / "pipe.vm.12").exists()
    assert core_dumps.collected(tmp_path / "none") == []
    assert (core_dumps.pid_of(first), core_dumps.pid_of(Path("core.7"))) == (12, 0)


def test_what_gdb_says_is_kept_for_every_reader(tmp_path: Path) -> None:
    core(tmp_path / "coredumps" / "vm-12.cudacore")
    environ = {"PATH": fake_gdb(tmp_path / "bin", "CUDA Exception: Warp Illegal Address\n")}
    written, why_not = post_mortem.open_all(tmp_path, environ)
    assert (written, why_not) == ([tmp_path / "tools" / "cuda-gdb-12.txt"], "")
    assert written[0].read_text() == "CUDA Exception: Warp Illegal Address\n"
    assert stat.S_IMODE(written[0].stat().st_mode) == 0o600


def test_without_gdb_that_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_places", lambda program, environ: iter(()))
    core(tmp_path / "coredumps" / "vm-12.cudacore")
    written, why_not = post_mortem.open_all(tmp_path, {"PATH": ""})
    assert written == []
    assert "cuda-gdb is not on PATH" in why_not
    assert "\n" not in why_not


# --- the pipe


def listening(folder: Path, answer: bytes | None) -> tuple[dict[str, str], threading.Thread]:
    """A pipe of this process that gives a core dump when it is written to; its environment."""
    environ = core_dumps.prepared(folder, {})
    pipe = folder / "coredumps" / f"pipe.vm.{os.getpid()}"
    os.mkfifo(pipe)
    ready = threading.Event()

    def wait() -> None:
        fd = os.open(pipe, os.O_RDWR)
        ready.set()
        assert os.read(fd, 1) == b"1"
        os.close(fd)
        if answer is not None:
            (folder / "coredumps" / f"vm-{os.getpid()}.cudacore").write_bytes(answer)

    thread = threading.Thread(target=wait)
    thread.start()
    assert ready.wait(60)
    return environ, thread


def test_a_process_that_listens_gives_one(tmp_path: Path) -> None:
    sample = core(tmp_path / "sample").read_bytes()
    environ, thread = listening(tmp_path, sample)
    found = core_dumps.trigger(os.getpid(), environ, "vm", 60)
    thread.join()
    assert found.read_bytes() == sample


def test_one_that_gives_nothing_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    environ, thread = listening(tmp_path, None)
    with pytest.raises(UsageError, match="wrote no core dump within 1 s"):
        core_dumps.trigger(os.getpid(), environ, "vm", 1)
    thread.join()


def test_a_process_that_does_not_listen_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was started without CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1"):
        core_dumps.trigger(os.getpid(), {}, "vm", 1)
    with pytest.raises(UsageError, match="has it used CUDA yet"):
        core_dumps.trigger(os.getpid(), core_dumps.prepared(tmp_path, {}), "vm", 1)
    with pytest.raises(UsageError, match="cannot look at process"):
        core_dumps.environment_of(2**22 + 1)
    assert core_dumps.environment_of(os.getpid())["PATH"] == os.environ["PATH"]
