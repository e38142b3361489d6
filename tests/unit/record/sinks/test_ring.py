from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from firstfault.record import layout
from firstfault.record.sinks.ring import SEGMENTS, Ring

SIZE = 4096
LINE = b"0123456789\n"


def header(index: int) -> bytes:
    return b"header %d\n" % index


def ring(folder: Path) -> Ring:
    return Ring(folder / "p", header, SIZE * SEGMENTS)


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "p").glob(layout.SEGMENTS))]


def test_what_was_written_and_no_more_once_it_is_closed(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    sink.write(LINE)
    sink.close()
    assert contents(tmp_path) == [header(1) + LINE]


def test_what_was_written_and_zeros_while_it_is_open(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    sink.write(LINE)
    assert contents(tmp_path) == [(header(1) + LINE).ljust(SIZE, b"\0")]
    sink.close()


def test_the_disk_that_it_takes_is_constant_and_the_last_records_are_there(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    lines = [b"%010d\n" % number for number in range(20 * SIZE // len(LINE))]
    for line in lines:
        sink.write(line)
        used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "p").iterdir())
        assert used <= SIZE * SEGMENTS
    sink.close()
    kept = contents(tmp_path)
    assert len(kept) == SEGMENTS
    written = [line for content in kept for line in content.splitlines(keepends=True) if b"header" not in line]
    assert written == lines[-len(written) :]
    assert len(written) > (SEGMENTS - 1) * (SIZE // len(LINE) - 2)


def test_a_record_is_never_split(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    sink.write(b"x" * (SIZE - 100) + b"\n")
    assert not sink.append(b"y" * 200, sink.index)
    assert not sink.append(b"y", sink.index + 1)
    sink.write(b"y" * 200 + b"\n")
    sink.close()
    assert [content.count(b"\n") for content in contents(tmp_path)] == [2, 2]
    assert sink.index == 2


def test_a_record_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    with pytest.raises(OSError, match="larger than a segment") as refused:
        sink.write(b"x" * SIZE)
    assert refused.value.errno == errno.EFBIG
    sink.write(LINE)
    sink.close()
    assert contents(tmp_path)[-1].endswith(LINE)


def test_the_last_lines_give_way(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    for _ in range((SIZE - len(header(1))) // len(LINE)):
        sink.write(LINE)
    lost = sink.write_last(b"the end\n")
    sink.close()
    (content,) = contents(tmp_path)
    assert content.endswith(LINE + b"the end\n")
    assert content.count(LINE) + lost == (SIZE - len(header(1))) // len(LINE)


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    (path,) = (tmp_path / "p").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700
    sink.close()


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        sink = ring(tmp_path)
        for number in range(1000):
            sink.write(b"%010d\n" % number)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert b"0000000999\n" in contents(tmp_path)[-1]


def test_a_forked_child_cuts_nothing_off(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    pid = os.fork()
    if pid == 0:
        sink.close()
        os._exit(0)
    os.waitpid(pid, 0)
    sink.write(LINE)
    sink.close()
    assert contents(tmp_path) == [header(1) + LINE]


def test_a_full_disk_leaves_the_last_segment_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ring(tmp_path)
    sink.write(b"x" * (SIZE - 100) + b"\n")

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            sink.write(b"y" * 200)
    sink.write(LINE)
    assert len(contents(tmp_path)) == 1
    sink.write(b"y" * 200 + b"\n")
    assert len(contents(tmp_path)) == 2
    sink.close()


def test_threads_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    sink = Ring(tmp_path / "p", header, 2**20 * SEGMENTS)

    def fill() -> None:
        for _ in range(3000):
            sink.write(LINE)

    threads = [threading.Thread(target=fill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert sum(content.count(LINE) for content in contents(tmp_path)) == 24_000


def test_a_program_that_closes_every_descriptor_keeps_its_own_files(tmp_path: Path) -> None:
    """``mmap.mmap`` would hold a low number, and close it when the segment rolls."""
    sink = ring(tmp_path)
    assert sink._map is not None
    os.close(sink._map._fd)
    mine = [os.open(tmp_path / f"mine{index}", os.O_RDWR | os.O_CREAT) for index in range(5)]
    os.dup2(mine[0], sink._map._fd)
    sink.write(b"x" * (SIZE - 100) + b"\n")
    sink.write(b"y" * 200 + b"\n")
    for fd in mine:
        os.fstat(fd)
        os.close(fd)
    sink.close()
    assert [content.count(b"\n") for content in contents(tmp_path)] == [2, 2]


def test_a_ring_that_is_closed_says_so(tmp_path: Path) -> None:
    sink = ring(tmp_path)
    sink.close()
    for use in (sink.write, sink.write_last):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use(LINE)


def test_a_segment_that_an_interrupt_left_half_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ring(tmp_path)
    most = LINE * (SIZE // len(LINE) - 1)
    sink.write(LINE)

    def interrupted(path: Path, size: int) -> None:
        path.touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("firstfault.record.sinks.ring.Mapping", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sink.write(most)
    sink.write(most)
    sink.close()
    assert contents(tmp_path) == [header(1) + LINE, header(2) + most]
