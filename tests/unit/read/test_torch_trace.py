"""Traces of torch's profiler: kernels by stage, gaps and overlap, and what is no trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose.serving.kernels import Stage, table
from firstfault.errors import UnreadableInput
from firstfault.present import kernels_text
from firstfault.read.formats import torch_trace


def event(name: str, start: float, micros: float, lane: int = 7, cat: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": micros, "pid": 0, "tid": lane, "args": {"x": 1}}


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    data = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def stage(path: Path) -> Stage:
    [found] = table([torch_trace.read(path)]).stages
    return found


def test_kernels_by_share_with_gaps_and_overlap(tmp_path: Path) -> None:
    events = [
        event("attention", 0, 100),
        event("gemm", 150, 50),
        event("all_reduce", 175, 75, lane=13),
        event("aten::mm", 0, 1000, cat="cpu_op"),
        {"ph": "M", "name": "process_name", "pid": "x", "tid": "y", "args": {}},
    ]
    found = stage(written(tmp_path / "1-TP-1-DECODE.trace.json.gz", events))
    assert (found.stage, found.rank, found.on_device) == ("decode", "TP-1", True)
    assert (found.span, found.busy) == (250.0, 200.0)
    assert found.gaps == pytest.approx(0.2)
    assert found.overlap == pytest.approx(25 / 200)
    assert [(one.name, one.count) for one in found.kernels] == [("attention", 1), ("all_reduce", 1), ("gemm", 1)]
    assert found.kernels[0].share == pytest.approx(100 / 225)


def test_operators_have_their_own_time_alone(tmp_path: Path) -> None:
    events = [
        event("aten::linear", 0, 100, cat="cpu_op"),
        event("aten::addmm", 10, 60, cat="cpu_op"),
        event("aten::copy_", 20, 10, cat="cpu_op"),
        event("aten::linear", 200, 10, cat="cpu_op"),
    ]
    found = stage(written(tmp_path / "extend.trace.json", events))
    assert (found.stage, found.on_device) == ("prefill", False)
    assert {one.name: one.micros for one in found.kernels} == {
        "aten::linear": 50.0,
        "aten::addmm": 50.0,
        "aten::copy_": 10.0,
    }


def test_the_table_is_shown(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"TP-0-{name}.trace.json", [event("k\x1b[2J", 0, 1000)]) for name in ("DECODE", "EXTEND")
    ]
    shown = kernels_text.render(table(map(torch_trace.read, paths)))
    assert shown.startswith("prefill, TP-0: 1.000 ms busy of 1.000 ms (gaps 0.0%, overlap 0.0%); kernels\n")
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"traceEvents": 1}', b"\x1f\x8b\x00", gzip.compress(b"x", mtime=0)[:-3]]
)
def test_what_is_no_trace_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(UnreadableInput, match="cannot read"):
        torch_trace.read(tmp_path / "t")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_trace, "LARGEST", 1000)
    (tmp_path / "t.gz").write_bytes(gzip.compress(bytes(100_000), mtime=0))
    with pytest.raises(UnreadableInput, match="more than 1000 bytes"):
        torch_trace.read(tmp_path / "t.gz")


SPANS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 500), st.integers(0, 200), st.integers(0, 2)), min_size=1
)


@given(SPANS)
def test_shares_add_up_and_busy_is_within_the_span(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[str, int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.json"
    found = stage(written(path, [event(*span) for span in spans]))
    assert 0 <= found.busy <= found.span + 1e-9
    assert 0 <= found.gaps <= 1
    assert 0 <= found.overlap <= 1 + 1e-9
    assert sum(one.count for one in found.kernels) == len(spans)
    if any(span[2] for span in spans):
        assert sum(one.share for one in found.kernels) == pytest.approx(1.0)
