from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstfault.record.sinks.append_file import AppendFile


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[AppendFile]:
    opened = AppendFile(tmp_path / "new" / "folder" / "log")
    yield opened
    opened.close()


class Disk:
    """Stands in for ``os.write``: takes so many bytes, then is full."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.real = os.write

    def __call__(self, fd: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.real(fd, bytes(data[: self.room]))
        self.room -= written
        return written


def test_each_write_is_on_disk_when_it_returns(sink: AppendFile) -> None:
    for count in range(1, 4):
        sink.write(b"line\n")
        assert sink.path.read_bytes() == b"line\n" * count


def test_nobody_else_may_read_it(sink: AppendFile) -> None:
    assert stat.S_IMODE(sink.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(sink.path.parent.stat().st_mode) == 0o700


def test_children_of_exec_do_not_inherit_it(sink: AppendFile) -> None:
    assert not os.get_inheritable(sink._fd)


def test_two_writers_of_one_file_do_not_overwrite_each_other(sink: AppendFile) -> None:
    sink.write(b"first\n")
    other = AppendFile(sink.path)
    assert (sink.is_new, other.is_new) == (True, False)
    other.write(b"other\n")
    sink.write(b"again\n")
    other.close()
    assert sink.path.read_bytes() == b"first\nother\nagain\n"


def test_a_short_write_is_finished(sink: AppendFile, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:3])))
    sink.write(b"0123456789\n")
    assert sink.path.read_bytes() == b"0123456789\n"


def test_a_full_disk_tears_one_line_and_no_other(sink: AppendFile, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.write(b"before\n")
    with monkeypatch.context() as full:
        full.setattr(os, "write", Disk(room=4))
        with pytest.raises(OSError, match="No space left"):
            sink.write(b"torn by the disk\n")
        with pytest.raises(OSError, match="No space left"):
            sink.write(b"lost\n")
    sink.write(b"after\n")
    assert sink.path.read_bytes().split(b"\n") == [b"before", b"torn", b"after", b""]


def test_what_is_refused_whole_leaves_no_trace(sink: AppendFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "write", Disk(room=0))
        with pytest.raises(OSError, match="No space left"):
            sink.write(b"lost\n")
    sink.write(b"after\n")
    assert sink.path.read_bytes() == b"after\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full() -> None:
    sink = AppendFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        sink.write(b"line\n")
    sink.close()


@pytest.mark.parametrize(
    ("held", "last", "left", "gave_way"),
    [
        (b"head\none\ntwo\nthree\n", b"END\n", b"head\none\ntwo\nEND\n", 1),
        (b"head\none\ntwo\ntorn", b"END\n", b"head\none\ntwo\nEND\n", 0),
        (b"head\none\ntwo\nto", b"END\n", b"head\none\nEND\n", 1),
        (b"head\none\ntwo\n", b"THE END\n", b"head\nTHE END\n", 2),
    ],
)
def test_last_lines_give_way(sink: AppendFile, held: bytes, last: bytes, left: bytes, gave_way: int) -> None:
    sink.write(held)
    size = len(held)
    assert sink.write_last(last) == gave_way
    assert sink.path.read_bytes() == left
    assert len(left) <= size, "it takes no room that the file did not have"
    sink.write(b"after\n")
    assert sink.path.read_bytes() == left + b"after\n"


def test_the_first_line_never_gives_way(sink: AppendFile) -> None:
    sink.write(b"head\none\n")
    with pytest.raises(OSError, match="No space left"):
        sink.write_last(b"longer than the rest\n")
    assert sink.path.read_bytes() == b"head\none\n"


def test_last_lines_of_a_torn_file_close_the_tear(sink: AppendFile, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.write(b"head\none\n")
    with monkeypatch.context() as full:
        full.setattr(os, "write", Disk(room=4))
        with pytest.raises(OSError, match="No space left"):
            sink.write(b"torn by the disk\n")
    sink.write_last(b"END\n")
    sink.write(b"after\n")
    assert sink.path.read_bytes() == b"head\none\nEND\nafter\n"


def test_a_program_that_closes_every_descriptor_keeps_its_files_to_itself(sink: AppendFile, tmp_path: Path) -> None:
    sink.write(b"first\n")
    os.close(sink._fd)
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    sink.write(b"second\n")
    assert sink._fd > 500 or resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 513
    assert sink.path.read_bytes() == b"first\nsecond\n"
    assert os.read(mine, 10) == b""
    os.close(mine)


def test_a_descriptor_that_is_the_programs_by_now_is_not_closed(tmp_path: Path) -> None:
    sink = AppendFile(tmp_path / "log")
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    os.dup2(mine, sink._fd)
    sink.close()
    os.fstat(sink._fd)
    os.close(sink._fd)
    os.close(mine)


def test_folders_above_it_are_private_too(tmp_path: Path) -> None:
    AppendFile(tmp_path / "a" / "b" / "log").close()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]
