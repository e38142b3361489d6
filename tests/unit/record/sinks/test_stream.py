from __future__ import annotations

import contextlib
import io
import sys

import pytest

from firstfault.record.sinks.stream import Stream


def test_it_keeps_its_place_among_what_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Stream("stdout")
    print("before")
    sink.write(b"block\n")
    print("after")
    assert capsys.readouterr().out == "before\nblock\nafter\n"


def test_what_the_program_redirects_to_read_back_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Stream("stdout")
    with contextlib.redirect_stdout(io.StringIO()) as read_back:
        print("answer")
        sink.write(b"block\n")
    assert read_back.getvalue() == "answer\n"
    assert capsys.readouterr().out == "block\n"


def test_what_an_old_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_below = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_below, encoding="ascii"))
    Stream("stdout").write("größe\n".encode())
    assert bytes_below.getvalue() == b"gr\\xf6\\xdfe\n"


class NoFlush:
    def write(self, text: str) -> int:
        return len(text)


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("stream", [None, NoFlush(), Closed(), object()])
def test_a_stream_that_is_none_is_a_named_error(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "stdout", stream)
        with pytest.raises(OSError):  # noqa: PT011 - the text is the stream's own
            Stream("stdout").write(b"block\n")
