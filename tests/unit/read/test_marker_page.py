from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstfault.read.formats import marker_page
from firstfault.record import layout, progress


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a process whose page lies in shared memory; the process is given by ``write``."""
    made = tmp_path / "recording" / "vm-42"
    made.mkdir(parents=True)
    yield made
    layout.marker_page(made).unlink(missing_ok=True)


def write(folder: Path, pid: int) -> bytes:
    data = progress.header(pid, 7, str(folder), 0).ljust(progress.PAGE_BYTES, b"\0")
    layout.marker_page(folder).write_bytes(data)
    return data


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_living_process_keeps_its_page(folder: Path) -> None:
    write(folder, os.getpid())
    marker_page.collect(folder.parent)
    assert layout.marker_page(folder).exists()
    assert marker_page.folder_of(os.getpid()) == folder
    page = marker_page.find(folder)
    assert page is not None
    assert page.pid == os.getpid()


def test_the_page_of_a_dead_one_goes_into_its_recording(folder: Path) -> None:
    data = write(folder, dead_pid())
    marker_page.collect(folder.parent)
    assert not layout.marker_page(folder).exists()
    kept = folder / layout.PROGRESS
    assert kept.read_bytes() == data
    assert kept.stat().st_mode & 0o777 == layout.PRIVATE_FILE
    assert marker_page.find(folder) is not None


def test_what_is_no_page_is_passed_over(folder: Path) -> None:
    (folder / layout.PROGRESS).write_bytes(b"something else")
    layout.marker_page(folder).write_bytes(b"")
    assert marker_page.find(folder) is None
    marker_page.collect(folder.parent)
    assert marker_page.folder_of(os.getpid()) is None
