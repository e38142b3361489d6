"""What the scenarios that need a GPU leave behind, written here record by record, and the truth that lies beside them.

A launch comes back on the host before its kernel fails, so the culprit is among the calls that came back; and a marker
page says how far the device got.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from firstfault.diagnose.finding import Confidence
from firstfault.record import codec, layout, progress, schema, statistics_page
from firstfault.record.statistics_page import FLOATING, INTEGER, Values
from scenarios.run import GPU_CASES, _compared
from tests.unit.read import samples

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
FLOATS = {"min": -3.0, "max": 3.0, "mean": 0.0, "nan_count": 0, "inf_count": 0}
STREAM = progress.slot(0, progress.STREAM, 0)
GRAPH = progress.slot(-1, progress.GRAPH, 1)
TOKEN = 41
"""Of the first reading at the replay that failed."""


def tensor(shape: tuple[int, ...], dtype: str, size: int, ptr: int, **fields: object) -> schema.Tensor:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    nbytes = strides[0] * shape[0] * size
    given = schema.Tensor(shape, dtype, "cuda:0", tuple(strides), 0, ptr, ptr, nbytes, True, False, 0)
    for name, value in fields.items():
        setattr(given, name, value)
    return given


def leave(folder: Path, records: list[schema.Record], *slots: tuple[bytes, int, int]) -> Path:
    """A recording of one process, whose page has what was enqueued and what was reached in each slot."""
    process = folder / "vm-42"
    process.mkdir(parents=True)
    header = schema.Header(schema.SCHEMA_VERSION, 1, 42, "vm", "0", 5, 1)
    layout.segment(process, 1).write_bytes(b"".join(map(codec.encode, [header, *records])))
    page = bytearray(progress.PAGE_BYTES)
    page[: progress.HEADER_BYTES] = progress.header(42, 1, str(process), len(slots)).ljust(progress.HEADER_BYTES, b"\0")
    for index, (fresh, enqueued, reached) in enumerate(slots):
        at = progress.slot_offset(index)
        page[at : at + 28] = fresh[:16] + enqueued.to_bytes(8, "little") + reached.to_bytes(4, "little")
    (process / layout.PROGRESS).write_bytes(page)
    (folder / layout.SESSION).write_text(json.dumps({"exit_status": 1, "signal": None, "pid": 42}))
    (folder / layout.STDERR_TAIL).write_text(ILLEGAL)
    return process


def returned(n: int, out: schema.Value = None, *, device: int = 0, mutated: tuple[str, ...] = ()) -> schema.Return:
    return schema.Return(n, n * 10 + 5, 42, described=True, out=out, mutated=[*mutated], device=device)


def row_offset(folder: Path) -> None:
    """Three launches, the last with 16 times the rows, too large for its values to be read."""
    records: list[schema.Record] = []
    for n, rows in enumerate((963, 963, 963 * 16), 1):
        out = tensor((rows, 151_936), "torch.int8", 1, n << 36)
        named: dict[str, schema.Value] = {"out": out, "width": 151_936, "BLOCK": 4096}
        records.append(schema.Call(n, n * 10, "fill_rows", "triton", tid=42, device=0, args=[], kwargs=named))
        records += [schema.Inputs(n, [], named), returned(n, mutated=("out",))]
    leave(folder, [*records, schema.End(100, 3)], (STREAM, progress.end_marker(3), progress.begin_marker(3)))


def gathered(n: int, graph: int) -> list[schema.Record]:
    """A call of the boundary, and in it the launch of its kernel; in a graph both are read at each replay."""
    device = -1 if graph else 0

    def given(*readings: int) -> list[schema.Tensor]:
        fields = [{"statistics": "[read at each replay]", "reading": reading} if graph else {} for reading in readings]
        table, index = fields[0] if graph else FLOATS, fields[1] if graph else {"min": 0, "max": 1023, "mean": 511.5}
        return [
            tensor((1024,), "torch.float32", 4, 0x7F0000000000, **table),
            tensor((1 << 18,), "torch.int64", 8, 0x7F0000A00000, **index),
        ]

    out = tensor((1 << 18,), "torch.float32", 4, 0x7F0200000000 if graph else 0x7F0100000000)
    named = dict(zip(("table", "index", "out"), [*given(3, 4), out], strict=True))
    launch = schema.Call(n + 1, n * 10 + 1, "gather", "triton", n, 42, device=device, graph=graph, args=[], kwargs={})
    return [
        schema.Call(n, n * 10, "gather_rows", tid=42, device=device, graph=graph, args=[], kwargs={}),
        schema.Inputs(n, [*given(1, 2)]),
        launch,
        schema.Inputs(n + 1, [], {**named}),
        returned(n + 1, device=device, mutated=("out",)),
        returned(n, out, device=device),
    ]


def freed_input(folder: Path, *, read: bool = True) -> None:
    """The index of a captured call is dropped, and the second of four results that are laid out like it takes its place.

    ``read`` is whether replays are read; without, as below level 5, nothing says that the index is no more.
    """

    def replay(n: int) -> list[schema.Record]:
        times = {"replay": n // 5, "token": TOKEN} if read else {}
        begun = schema.Call(n, n * 10, "torch.cuda.CUDAGraph.replay", "cuda_graph", tid=42, device=0, graph=1, args=[])
        for name, value in times.items():
            setattr(begun, name, value)
        return [begun, schema.Inputs(n, []), returned(n)]

    drawn: list[schema.Record] = []
    for n in range(6, 10):
        noise = tensor((1 << 18,), "torch.int64", 8, 0x7F0000800000 + (n - 6) * 0x200000, min=1 << 38, max=1 << 38)
        drawn += [schema.Call(n, n * 10, "draw_noise", tid=42, device=0, args=[1 << 18]), returned(n, noise)]
    process = leave(
        folder,
        [*gathered(1, 0), *gathered(3, 1), *replay(5), *drawn, *replay(10), schema.End(110, 10)],
        (STREAM, progress.end_marker(10), progress.begin_marker(10)),
        (GRAPH, 2, progress.begin_marker(4)),
    )
    if read:
        (process / layout.STATISTICS).write_bytes(readings(process))


def readings(process: Path) -> bytes:
    """What there is of the last replay: the table of the boundary; its index was freed, and so was the launch's."""
    page = bytearray(statistics_page.PAGE_BYTES)
    head = statistics_page.header(42, 1, str(process))
    page[: len(head)] = head
    view = memoryview(page)
    for slot, (call, values) in enumerate(
        [(3, Values(FLOATING, 1024)), (3, Values(INTEGER, 0)), (4, Values(FLOATING, 1024)), (4, Values(INTEGER, 0))]
    ):
        statistics_page.write_entry(view, slot, TOKEN + slot, call, statistics_page.INPUTS, slot % 2, values)
        at = statistics_page.entry_offset(slot) + statistics_page.RESULT_OFFSET
        if slot != 2:  # which the device did not get to
            statistics_page.write_result(view, at, values.number, (0, 1, 2, values.numel, 0), TOKEN + slot)
    return bytes(page[: statistics_page.entry_offset(4)])


@pytest.mark.parametrize("scenario", [row_offset, freed_input])
def test_the_diagnosis_is_the_truth(scenario: Callable[[Path], None], tmp_path: Path) -> None:
    scenario(tmp_path)
    diagnosis = samples.report(tmp_path).diagnosis
    assert diagnosis is not None
    truth = json.loads((GPU_CASES / f"{scenario.__name__}.json").read_text())
    said = {"kind": diagnosis.kind.value, "command": diagnosis.command}
    said |= {"culprit_op": diagnosis.culprit_op, "origin_op": diagnosis.origin_op}
    judged = _compared(scenario.__name__, truth, said, "")
    assert judged.all_right, judged.said


def test_a_tensor_that_was_freed_before_the_replay_is_told_so(tmp_path: Path) -> None:
    freed_input(tmp_path)
    (process,) = samples.report(tmp_path).processes
    stale = next(finding for finding in process.findings if finding.rule == "FF802")
    assert stale.confidence is Confidence.HIGH
    assert "the recorder was to read it at the replay, and found that the program had freed it" in stale.evidence


def test_without_readings_results_that_lie_elsewhere_too_are_no_buffer(tmp_path: Path) -> None:
    freed_input(tmp_path, read=False)
    diagnosis = samples.report(tmp_path).diagnosis
    assert diagnosis is not None
    assert (diagnosis.rule, diagnosis.origin, diagnosis.origin_op) == ("FF802", 7, "draw_noise")
