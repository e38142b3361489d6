"""No input brings down the readers, or steers the terminal that shows what they found."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firstfault.record import codec, schema
from tests.unit.read import samples
from tests.unit.read.strategies import OPS
from tests.unit.read.survival import survives

HEAD = b"[2026-03-19 00:47:30] SGLang Kernel API Call: op\n"
LINES = sorted({line for name in samples.LOGS for line in samples.log_bytes(name).split(b"\n")})
EXTRA = [
    b"Output:", b"Output value:", b"Positional input arguments:", b"Keyword input arguments:", b"=" * 80, b"  return=",
    b"  process=1 thread=2", b"  process=1 thread=99999999999999999999", b"Tensor(", b")", b"    )", b"      [0] {",
    b"Tensor dump skipped: ", b"Dumped inputs to: ", b"[2026-99-99 99:99:99] SGLang Kernel API Call: x",
    b"[2026-03-19 00:47:30] SGLang Kernel API Exception: op (E: m", b"      shape=(9999999999999999999999,)",
    b"      min=1e999", b"      nan_count=99999999999999999999", b"  arg[0]=" + b"(" * 300, b"  arg[0]='\\ud800\\N{'",
    b"  arg[0]=" + b"[" * 3000, b"\xff\xfe\x1b[2J\x9b\xe2\x80\xae", b"\r", b"  mutated=a, b",
]  # fmt: skip


@given(st.binary(max_size=300))
def test_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(data)
    survives(path)
    path.write_bytes(HEAD + data)
    assert not isinstance(survives(path), str)


@given(st.lists(st.sampled_from(LINES + EXTRA) | st.binary(max_size=40), max_size=30))
def test_lines_of_logs_in_any_order(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(HEAD + b"\n".join(lines))
    assert not isinstance(survives(path), str)


@pytest.mark.parametrize("name", samples.LOGS)
def test_logs_with_bytes_changed_lost_and_doubled(tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    whole = samples.log_bytes(name)[:6000]
    path = tmp_path / "log.txt"
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 30)):
            at = chance.randrange(len(data))
            length = chance.choice([1, 1, 1, 10, 200])
            piece = chance.choice([b"", bytes([chance.randrange(256)]), data[at : at + length] * 2, b"\n", b"\x1b[31m"])
            data[at : at + length] = piece
        path.write_bytes(HEAD + data)
        assert not isinstance(survives(path), str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def plain(record: Any) -> Any:
    return json.loads(codec.encode(record))


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    """A record with some fields of another type or value, as a line."""
    n = draw(st.integers(-1, 4))
    values: list[schema.Value] = [samples.tensor(4, 8, min=-1.0, max=2.0, mean=0.5, nan_count=3), "x"]
    record = plain(
        draw(
            st.sampled_from(
                [
                    samples.header(5),
                    samples.call(n, "op", *values, parent=1),
                    samples.returned(n, values[0], mutated=["arg[0]"]),
                    samples.raised(n),
                ]
            )
        )
    )
    target = record
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        if isinstance(target[key], (dict, list)) and target[key] and draw(st.booleans()):
            target = target[key]
            continue
        target[key] = draw(JSON | st.sampled_from([2**63, -(2**63) - 1, 2**200, "\x1b[2J\n# x", "nan", {"type": "x"}]))
    return json.dumps(record).encode()


@given(
    st.lists(
        damaged_records() | JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20), max_size=8
    )
)
@example([b"[" * 100_000])
@example([json.dumps(plain(samples.call(1, "op"))).encode().replace(b'"n":1', b'"n":1e3')])
def test_records_of_any_shape(tmp_path: Path, lines: list[bytes]) -> None:
    folder = tmp_path / "recording" / "vm-1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "calls.0001.jsonl").write_bytes(b"\n".join([codec.encode(samples.header())[:-1], *lines]))
    survives(tmp_path / "recording")


@given(JSON, JSON, st.sampled_from(["function_name", "input_metadata", "tensor_details", "args", "kwargs", "exception",
       "execution_status", "result", "output_metadata", "call_number", "thread_id", "process_id", "timestamp",
       "mutated_tensor_keys", "tensor_info"]), OPS)  # fmt: skip
def test_metadata_of_any_shape(tmp_path: Path, whole: Any, field: Any, name: str, op: str) -> None:
    folder = tmp_path / "dumps" / "20260319_004821_182_pid7_op_call0001"
    folder.mkdir(parents=True, exist_ok=True)
    usual = {"function_name": op, "execution_status": "completed", "input_metadata": {"arg_0": 1}}
    for metadata in (whole, usual | {name: field}, usual | {name: {"arg_0": field, "type": "list", "items": [field]}}):
        (folder / "metadata.json").write_text(json.dumps(metadata))
        assert not isinstance(survives(tmp_path / "dumps"), str)
