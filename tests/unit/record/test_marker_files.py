from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firstfault.record import layout, marker_files, progress


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for shared memory."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(layout, "SHARED_MEMORY", folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a process in a recording."""
    made = tmp_path / "recording" / "vm-42"
    made.mkdir(parents=True)
    return made


def write(memory: Path, folder: Path, pid: int, namespace: int | None = None) -> Path:
    chosen = marker_files.pid_namespace() if namespace is None else namespace
    path = memory / "firstfault-1-2-vm-42"
    path.write_bytes(progress.header(pid, 7, str(folder), 0, chosen).ljust(progress.PAGE_BYTES, b"\0"))
    return path


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_living_process_keeps_its_page(memory: Path, folder: Path) -> None:
    path = write(memory, folder, os.getpid())
    marker_files.collect()
    assert path.exists()
    assert [page.pid for page in marker_files.living()] == [os.getpid()]


def test_the_page_of_a_dead_one_goes_into_its_recording(memory: Path, folder: Path) -> None:
    path = write(memory, folder, dead_pid())
    data = path.read_bytes()
    marker_files.collect()
    kept = folder / layout.PROGRESS
    assert not path.exists()
    assert kept.read_bytes() == data
    assert kept.stat().st_mode & 0o777 == layout.PRIVATE_FILE


def test_one_whose_recording_is_gone_is_removed(memory: Path, folder: Path) -> None:
    path = write(memory, folder, dead_pid())
    folder.rmdir()
    marker_files.collect()
    assert not path.exists()


def test_whether_a_process_of_another_container_lives_cannot_be_told(memory: Path, folder: Path) -> None:
    path = write(memory, folder, dead_pid(), namespace=1)
    marker_files.collect()
    assert path.exists()


def test_what_others_put_into_shared_memory_is_not_read(memory: Path, folder: Path, tmp_path: Path) -> None:
    path = write(memory, folder, dead_pid())
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(memory / "firstfault-fifo")
    (memory / "firstfault-empty").touch()
    (memory / "firstfault-other").write_bytes(b"something else" * 1000)
    marker_files.collect()
    assert path.is_symlink()
    assert list(marker_files.living()) == []


def test_a_page_that_does_not_fit_the_disk_stays_where_it_is(
    memory: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(memory, folder, dead_pid())
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: real(fd, data[:100]))
        with pytest.raises(OSError, match="No space left"):
            marker_files.collect()
    assert path.exists()
    assert list(folder.iterdir()) == []
