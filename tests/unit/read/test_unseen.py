"""Processes that nothing was recorded in, read from a file that may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read import unseen as module
from firstfault.read.unseen import unseen


def line(**changed: Any) -> bytes:
    told = {"pid": 42, "command": ["python", "-I", "a b.py"], "why": "-I: it reads no PYTHONPATH"}
    return json.dumps(told | changed).encode()


def read(folder: Path, data: bytes) -> list[str]:
    (folder / "unseen.jsonl").write_bytes(data)
    return unseen(folder)


def test_one_sentence_each(tmp_path: Path) -> None:
    found = read(tmp_path, b"\n".join([line(), line(pid=43), line(pid=44, why="another")]))

    assert found == [
        "2 processes (python -I 'a b.py'): -I: it reads no PYTHONPATH",
        "process 44 (python -I 'a b.py'): another",
    ]


def test_none(tmp_path: Path) -> None:
    assert unseen(tmp_path) == []
    assert unseen(tmp_path / "nowhere") == []
    assert read(tmp_path, b"") == []


def test_of_many_the_first(tmp_path: Path) -> None:
    found = read(tmp_path, b"\n".join(line(why=str(at)) for at in range(100)))

    assert len(found) == module.MOST + 1
    assert found[-1] == f"{100 - module.MOST} more Python programs"


@pytest.mark.parametrize(
    "torn",
    [
        b'{"pid":1,"comm',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"pid":1}',
        line(pid="x"),
        line(command="no list"),
        line(why=None),
        line(pid=0)[:-2] + b'9":' + b"1" * 5000 + b"}",
        b'{"pid":' + b"9" * 4000 + b',"command":[],"why":""}',
        b"\0" * 100,
    ],
)
def test_line_that_is_none_is_passed_over(tmp_path: Path, torn: bytes) -> None:
    assert read(tmp_path, torn + b"\n" + line()) == ["process 42 (python -I 'a b.py'): -I: it reads no PYTHONPATH"]


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "unseen.jsonl").mkdir()
    assert unseen(tmp_path) == []


def test_link_to_what_never_ends(tmp_path: Path) -> None:
    (tmp_path / "unseen.jsonl").symlink_to("/dev/zero")
    assert unseen(tmp_path) == []


@given(st.binary(max_size=300))
def test_anything(tmp_path: Path, data: bytes) -> None:
    assert all(isinstance(sentence, str) for sentence in read(tmp_path, data))
