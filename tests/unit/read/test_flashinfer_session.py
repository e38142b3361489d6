"""FlashInfer's ``session.jsonl``, with the dumps beside it and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.formats.flashinfer_session import FlashInferSession
from firstfault.read.session import open_source
from firstfault.record import schema
from tests.unit.read import samples


def session(folder: Path, *, keep_dumps: bool) -> Path:
    """The metadata of a real session's dumps in one file, as FlashInfer appends it."""
    dumps = samples.unpack_dumps("flashinfer_level10", folder)
    every = sorted(dumps.glob("*/metadata.jsonl"))
    path = (dumps if keep_dumps else folder) / "session.jsonl"
    path.write_bytes(b"".join(one.read_bytes() for one in every))
    return path


def ops(path: Path) -> list[tuple[str, bool]]:
    events, _ = samples.read(path)
    return [(event.record.op, bool(event.record.args)) for event in events if isinstance(event.record, schema.Call)]


def test_the_same_calls_as_in_the_dumps(tmp_path: Path) -> None:
    path = session(tmp_path, keep_dumps=True)
    assert isinstance(open_source(path), FlashInferSession)
    assert ops(path) == ops(path.parent)
    assert len(ops(path)) > 3


def test_the_calls_are_there_without_their_dumps(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = session(tmp_path / "a", keep_dumps=False)
    assert [op for op, _ in ops(path)] == [op for op, _ in ops(session(tmp_path, keep_dumps=True))]
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "session.jsonl").write_bytes(path.read_bytes())
    assert isinstance(open_source(alone), FlashInferSession)


def test_an_unfinished_call_is_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    states = [("a", "inputs_saved"), ("a", "completed"), ("b", "inputs_saved")]
    path.write_text("\n".join(json.dumps({"function_name": op, "execution_status": state, "dump_dir": f"d/{op}"}) for op, state in states))  # fmt: skip
    assert samples.report(path).conclusion.startswith("b (call 2) ")


@pytest.mark.parametrize(
    "line", ["{", "3", "{}", '{"dump_dir": 7', "[" * 100_000, '{"dump_dir": "x", "function_name": [1]}']
)
def test_a_line_that_is_none_is_told_of(tmp_path: Path, line: str) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text(line + '\n{"function_name": "good", "dump_dir": "d"}\n')
    assert ("good", False) in ops(path)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(b"\n".join(lines))
    samples.read(path)
