"""A recording summed up from the ends of its files, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary, coverage, recorder
from firstfault.read.summary import TAIL, summary
from firstfault.record import codec, schema
from tests.conftest import Record


def process(folder: Path, *records: schema.Record, name: str = "vm-1", before: bytes = b"", after: bytes = b"") -> None:
    """One process's only segment."""
    (folder / name).mkdir(parents=True)
    header = schema.Header(schema.SCHEMA_VERSION, 1, 1, "vm", "0", 3, 1)
    data = before + b"".join(codec.encode(record) for record in (header, *records)) + after
    (folder / name / "calls.0001.jsonl").write_bytes(data)


def test_processes_calls_and_gaps(tmp_path: Path) -> None:
    process(tmp_path, schema.Target(1, "vllm", "vllm", "9", 0, "broken"), schema.End(1, 5), name="vm-1")
    process(tmp_path, schema.Note(1, "compiled", "modules in it"), schema.End(1, 7), name="vm-2")
    process(tmp_path, schema.Note(1, "compiled", "modules in it"), name="vm-3")
    (tmp_path / "unseen.jsonl").write_text('{"pid":9,"command":["python","-I"],"why":"-I"}\n')

    found = summary(tmp_path)

    assert (found.calls, found.processes, found.cut_off) == (12, 3, 1)
    assert found.gaps == ["process 9 (python -I): -I", "vllm: broken", "modules in it"]


def test_how_a_target_stood_last(tmp_path: Path) -> None:
    process(tmp_path, *(schema.Target(at, "triton", "triton", "3", at) for at in range(3)), schema.End(1, 0))

    assert summary(tmp_path).gaps == []


def test_the_end_of_a_long_one(tmp_path: Path) -> None:
    process(tmp_path, schema.Note(1, "a", "seen"), schema.End(1, 8), before=b"x" * (3 * TAIL) + b"\n")

    assert (summary(tmp_path).calls, summary(tmp_path).gaps) == (8, ["seen"])


@pytest.mark.parametrize("after", [b"", b'{"type":"call","n":9,"t', b"\xff\n\0\0\n", b"[" * 10_000])
def test_torn(tmp_path: Path, after: bytes) -> None:
    process(tmp_path, schema.End(1, 8), after=after)

    assert (summary(tmp_path).calls, summary(tmp_path).cut_off) == (8, 0)


@pytest.mark.parametrize("laid_out", [0, 5 * TAIL])
def test_of_a_process_that_was_killed_what_it_wrote_counts(tmp_path: Path, laid_out: int) -> None:
    """Also in a ring, whose segment ends in zeros."""
    process(tmp_path, *(schema.Call(n, 1, "op") for n in range(1, 42)), after=b"\0" * laid_out)

    assert (summary(tmp_path).calls, summary(tmp_path).cut_off) == (41, 1)


def test_nothing(tmp_path: Path) -> None:
    assert (summary(tmp_path).processes, summary(tmp_path).gaps) == (0, [])


@pytest.mark.parametrize("mode", [{}, {"ring_bytes": 2**20}])
def test_of_what_a_recorder_leaves(record: Record, mode: dict[str, int]) -> None:
    """Also of a ring, whose segments are as long as they will ever be from the beginning on."""
    recording = record(3, text_dest=None, **mode)
    boundary_of = boundary.wrap(lambda x: x, "some.op")
    for _ in range(3):
        boundary_of(torch.ones(1))
    coverage.lacks("some_target", "why it is not there")
    try:
        recorder.tell_targets()
        assert recorder._current is not None
        recorder._current.end()
    finally:
        coverage.targets.pop("some_target")

    found = summary(recording.folder)
    assert (found.calls, found.processes, found.cut_off) == (3, 1, 0)
    assert "some_target: why it is not there" in found.gaps


@given(st.binary(max_size=400))
def test_anything(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "vm-1"
    folder.mkdir(exist_ok=True)
    (folder / "calls.0001.jsonl").write_bytes(data)

    assert summary(tmp_path).processes <= 1
