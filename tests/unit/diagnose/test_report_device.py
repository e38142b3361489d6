"""The device's word against the host's, in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstfault.diagnose import live
from firstfault.diagnose.report import ProcessReport, Verdict
from firstfault.present.sections import sections
from firstfault.read.live import marked
from firstfault.record import codec, layout, progress, schema
from tests.unit.read import samples
from tests.unit.read.test_statistics_page import keep

CUDA_ERROR = "CUDA error: an illegal memory access was encountered"


def recorded(folder: Path, reached: int, *, raised: str = CUDA_ERROR, status: int = 1) -> ProcessReport:
    """A run of ten calls on one stream whose device had got to ``reached``; the host finds out in call 10."""
    process = folder / "vm-42"
    process.mkdir(parents=True)
    records: list[schema.Record] = [schema.Header(1, 1, 42, "vm", "0", 3, 1)]
    for n in range(1, 11):
        records.append(schema.Call(n, n, f"op{n}", tid=42, device=0, args=[], kwargs={}))
        if n < 10:
            records.append(schema.Return(n, n, tid=42, device=0))
    records.append(schema.Raise(10, 10, "AcceleratorError", raised, tid=42))
    layout.segment(process, 1).write_bytes(b"".join(map(codec.encode, records)))
    page = bytearray(progress.PAGE_BYTES)
    page[: progress.HEADER_BYTES] = progress.header(42, 1, str(process), 1).ljust(progress.HEADER_BYTES, b"\0")
    offset = progress.slot_offset(0)
    page[offset : offset + 16] = progress.slot(0, progress.STREAM, 0)[:16]
    page[offset + 16 : offset + 24] = progress.begin_marker(10).to_bytes(8, "little")
    page[offset + 24 : offset + 28] = reached.to_bytes(4, "little")
    (process / layout.PROGRESS).write_bytes(page)
    (folder / layout.SESSION).write_text(json.dumps({"exit_status": status, "signal": None, "pid": 42}))
    (found,) = samples.report(folder).processes
    return found


def test_the_culprit_is_the_call_that_the_device_did_not_complete(tmp_path: Path) -> None:
    found = recorded(tmp_path, progress.begin_marker(4))
    assert found.verdict is Verdict.CULPRIT
    assert found.suspect is not None
    assert found.suspect.n == 4
    assert found.conclusion == (
        "op4 (call 4) began on the device and did not complete; "
        "the error surfaced in op10 (call 10), and the host had got to op10 (call 10)."
    )
    assert found.device == [
        "device 0 stream 0x0: the device began op4 (call 4) and did not complete it; the host got to op10 (call 10)"
    ]


def test_work_between_two_calls_is_not_blamed_on_either(tmp_path: Path) -> None:
    found = recorded(tmp_path, progress.end_marker(4))
    assert found.verdict is Verdict.CULPRIT
    assert found.conclusion.startswith("The device failed in unrecorded work after op4 (call 4)")


@pytest.mark.parametrize(
    ("raised", "status"), [("index out of range in self", 1), (CUDA_ERROR, 0)], ids=["host error", "exited well"]
)
def test_a_backlog_is_no_fault(tmp_path: Path, raised: str, status: int) -> None:
    found = recorded(tmp_path, progress.begin_marker(4), raised=raised, status=status)
    assert found.verdict is not Verdict.CULPRIT
    assert len(found.device) == 1


def test_a_device_that_caught_up_leaves_the_verdict_alone(tmp_path: Path) -> None:
    found = recorded(tmp_path, progress.begin_marker(10))
    assert found.verdict is Verdict.EXCEPTION
    assert found.suspect is not None
    assert found.suspect.n == 10


def test_live_says_the_same_of_the_recording(tmp_path: Path) -> None:
    found = recorded(tmp_path, progress.begin_marker(4))
    assert live.standings(marked(tmp_path)) == [("vm-42", sentence) for sentence in found.device]


def test_a_culprit_in_a_graph_has_the_values_of_the_replay_that_died(tmp_path: Path) -> None:
    process = tmp_path / "vm-42"
    process.mkdir()
    x = schema.Tensor((1,), "torch.float32", "cuda:0", statistics="[read at each replay]", reading=1)
    records: list[schema.Record] = [
        schema.Header(1, 1, 42, "vm", "0", 5, 1),
        schema.Call(1, 1, "store", tid=42, graph=1, args=[], kwargs={}),
        schema.Inputs(1, [x]),
        schema.Return(1, 1, tid=42, described=True),
    ]
    for n in (2, 3):
        given = schema.Call(n, n, "replay", tid=42, device=0, graph=1, replay=n - 1, token=n, args=[], kwargs={})
        records += [given, schema.Inputs(n, []), schema.Return(n, n, tid=42, device=0)]
    layout.segment(process, 1).write_bytes(b"".join(map(codec.encode, records)))
    keep(process, (2, 4.0), (3, 6.0))
    page = bytearray(progress.PAGE_BYTES)
    page[: progress.HEADER_BYTES] = progress.header(42, 1, str(process), 2).ljust(progress.HEADER_BYTES, b"\0")
    slots = [
        (progress.slot(0, progress.STREAM, 0), progress.end_marker(3), progress.begin_marker(3)),
        (progress.slot(-1, progress.GRAPH, 1), 2, progress.begin_marker(1)),
    ]
    for index, (fresh, enqueued, reached) in enumerate(slots):
        offset = progress.slot_offset(index)
        page[offset : offset + 28] = fresh[:16] + enqueued.to_bytes(8, "little") + reached.to_bytes(4, "little")
    (process / layout.PROGRESS).write_bytes(page)
    (tmp_path / layout.SESSION).write_text(json.dumps({"exit_status": 1, "signal": None, "pid": 42}))
    (tmp_path / layout.STDERR_TAIL).write_text(CUDA_ERROR)
    found = samples.report(tmp_path)
    suspect = found.processes[0].suspect
    assert suspect is not None
    assert (suspect.op, suspect.graph, suspect.replay) == ("store", 1, 2)
    assert isinstance(suspect.inputs[0].value, schema.Tensor)
    assert suspect.inputs[0].value.max == 6.0
    shown = {section.title: section for section in sections(found)}
    assert ("values", "of replay 2 of graph 1") in shown["Last call"].lines
