from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstfault.read.formats import marker_page
from firstfault.record import layout, marker_files, progress


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a process whose page lies in shared memory."""
    made = tmp_path / "recording" / "vm-42"
    made.mkdir(parents=True)
    yield made
    layout.marker_page(made).unlink(missing_ok=True)


def page(folder: Path) -> bytes:
    return progress.header(os.getpid(), 7, str(folder), 0).ljust(progress.PAGE_BYTES, b"\0")


def test_the_page_of_a_living_process(folder: Path) -> None:
    layout.marker_page(folder).write_bytes(page(folder))
    found = marker_page.find(folder)
    assert found is not None
    assert found.pid == os.getpid()
    assert marker_page.folder_of(os.getpid()) == folder


def test_the_page_that_was_kept(folder: Path) -> None:
    marker_files.keep(page(folder), folder)
    assert marker_page.find(folder) is not None
    assert marker_page.folder_of(os.getpid()) is None


def test_what_is_no_page_is_passed_over(folder: Path) -> None:
    assert marker_page.find(folder) is None
    layout.marker_page(folder).write_bytes(b"")
    assert marker_page.find(folder) is None
    (folder / layout.PROGRESS).write_bytes(b"something else")
    assert marker_page.find(folder) is None
    (folder / layout.PROGRESS).unlink()
    os.mkfifo(folder / layout.PROGRESS)
    assert marker_page.find(folder) is None
