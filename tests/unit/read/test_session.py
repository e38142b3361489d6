"""PATH → what reads it, or one line that says why nothing does."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firstfault.errors import UnreadableInput
from firstfault.read.files import open_regular, read_end, read_whole
from firstfault.read.formats.dump_folder import DumpFolder
from firstfault.read.formats.kernel_api_log import KernelApiLog
from firstfault.read.formats.recording import Recording
from firstfault.read.session import open_source
from tests.unit.descriptors import opened
from tests.unit.read import samples


def test_what_is_recognised(tmp_path: Path) -> None:
    recording = samples.recording(tmp_path, [samples.header(), samples.call(1)])
    dumps = samples.unpack_dumps("sglang_level10", tmp_path)
    log = samples.write_log("sglang_level1", tmp_path)
    assert isinstance(open_source(recording), Recording)
    assert isinstance(open_source(recording / "vm-4242"), Recording)
    assert isinstance(open_source(recording / "vm-4242" / "calls.0001.jsonl"), Recording)
    assert isinstance(open_source(log), KernelApiLog)
    assert isinstance(open_source(dumps), DumpFolder)
    assert isinstance(open_source(next(path for path in dumps.iterdir() if path.is_dir())), DumpFolder)
    link = tmp_path / "link"
    link.symlink_to(log)
    assert isinstance(open_source(link), KernelApiLog)


def test_a_recording_without_processes_is_one(tmp_path: Path) -> None:
    (tmp_path / "session.json").write_text("{}")
    assert isinstance(open_source(tmp_path), Recording)


def test_a_call_after_much_other_output_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(
        b"starting\n" * 10**6 + b"x" * (2**20 - 10) + b"\n[2026-03-19 00:47:30] SGLang Kernel API Call: op\n"
    )
    assert isinstance(open_source(path), KernelApiLog)


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is limited to some hundred bytes
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(("make", "reason"), [
    (lambda path: None, "no such file or folder"),
    (Path.mkdir, "a folder without calls"),
    (Path.touch, "holds no kernel API call"),
    (lambda path: path.write_bytes(os.urandom(5000)), "holds no kernel API call"),
    (lambda path: path.write_bytes(b"\n" * 10**6), "holds no kernel API call"),
    (os.mkfifo, "not a regular file"),
    (bind, "not a regular file"),
    (lambda path: path.symlink_to(path), "symbolic links"),
    (lambda path: path.symlink_to(path.parent / "nowhere"), "a link that leads nowhere"),
])  # fmt: skip
def test_what_nothing_reads_is_one_line(tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
    path = tmp_path / "input"
    make(path)
    with pytest.raises(UnreadableInput, match=reason) as raised:
        open_source(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["", "/dev/null", "/dev/zero", "/proc/self/mem", "a\0b", "x" * 5000, "/etc/passwd/x"])
def test_odd_paths(path: str) -> None:
    with pytest.raises(UnreadableInput):
        open_source(Path(path) if path else Path("/nowhere/at/all"))


def test_files_are_opened_only_where_they_are_some(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    assert read_whole(file, 10) == b"0123456789"
    with pytest.raises(UnreadableInput, match="more than the 9 bytes"):
        read_whole(file, 9)
    assert read_end(file, 4) == b"6789"
    assert read_end(file, 100) == b"0123456789"
    before = opened()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, Path("/dev/zero"), tmp_path / "nothing"):
        with pytest.raises(UnreadableInput):
            open_regular(path)
    assert len(os.listdir("/proc/self/fd")) == before


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, which reads everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_what_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders keep others out as a whole
        root = Path(name)
        root.chmod(0o755)
        (root / "log.txt").touch(mode=0)
        (root / "folder").mkdir(mode=0)
        for path in (root / "log.txt", root / "folder", root / "folder" / "inside"):
            with nobody(), pytest.raises(UnreadableInput, match="Permission denied"):
                open_source(path)
        recording = samples.recording(root, [samples.header(), samples.call(1)])
        (recording / "vm-4242" / "calls.0001.jsonl").chmod(0)
        with nobody():
            events, source = samples.read(recording)
        assert events == []
        assert "Permission denied" in source.problems.lines()[0]
