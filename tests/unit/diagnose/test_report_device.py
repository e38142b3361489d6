"""The device's word against the host's, in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstfault.diagnose import live
from firstfault.diagnose.report import ProcessReport, Verdict
from firstfault.read.live import marked
from firstfault.record import codec, layout, progress, schema
from tests.unit.read import samples

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
