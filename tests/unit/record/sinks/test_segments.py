from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from firstfault.record import layout
from firstfault.record.sinks.segments import Segments
from tests.unit.descriptors import opened

HEADER = b"header 1\n"
LINE = b"0123456789\n"


def segments(folder: Path, size: int) -> Segments:
    return Segments(folder, lambda index: b"header %d\n" % index, size)


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob(layout.SEGMENTS))]


def test_the_header_is_there_before_the_first_record(tmp_path: Path) -> None:
    segments(tmp_path / "p", 1000).close()
    assert contents(tmp_path / "p") == [HEADER]


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path) -> None:
    sink = segments(tmp_path, len(HEADER) + 2 * len(LINE))
    for _ in range(5):
        sink.write(LINE)
    sink.close()
    assert contents(tmp_path) == [HEADER + LINE * 2, b"header 2\n" + LINE * 2, b"header 3\n" + LINE]


def test_a_record_larger_than_a_segment_is_kept_whole(tmp_path: Path) -> None:
    sink = segments(tmp_path, 20)
    sink.write(b"x" * 100 + b"\n")
    sink.write(LINE)
    sink.close()
    assert contents(tmp_path) == [HEADER + b"x" * 100 + b"\n", b"header 2\n" + LINE]


def test_a_header_that_does_not_fit_the_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = segments(tmp_path, len(HEADER) + len(LINE))
    sink.write(LINE)
    before = opened()
    real = os.write

    def half(fd: int, data: bytes) -> int:
        if not data.startswith(b"head"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data[:4]))

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                sink.write(LINE)
    assert len(os.listdir("/proc/self/fd")) == before
    sink.write(LINE)
    sink.close()
    assert contents(tmp_path) == [HEADER + LINE, b"header 2\n" + LINE]


def test_closing_gives_every_descriptor_back(tmp_path: Path) -> None:
    before = opened()
    sink = segments(tmp_path, 20)
    for _ in range(10):
        sink.write(LINE)
    sink.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_that_fill_a_segment_at_once_lose_nothing(tmp_path: Path) -> None:
    sink = segments(tmp_path, 20_000)

    def fill() -> None:
        for _ in range(3000):
            sink.write(LINE)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=fill) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    sink.close()
    assert sum(content.count(LINE) for content in contents(tmp_path)) == 24_000
    assert [content.count(b"header") for content in contents(tmp_path)] == [1] * len(contents(tmp_path))
