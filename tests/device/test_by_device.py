"""Calls that C writes and whose tensors the device reads: each has the statistics of its own tensors."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstfault.capture import compiled
from firstfault.read.formats.recording import Recording
from firstfault.record import layout, schema

pytestmark = pytest.mark.skipif(compiled.crossing is None, reason="the C of crossing/ is not built")

PROGRAM = Path(__file__).parent / "programs" / "read_by_device.py"
MODES = {"sync": {}, "async": {"FIRSTFAULT_STATS": "async"}}


def run(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"FIRSTFAULT_LOGLEVEL": "5", "FIRSTFAULT_DIR": str(folder / "recording")} | environ
    command = [sys.executable, str(PROGRAM), *words]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


def sides(folder: Path) -> list[tuple[str, list[schema.Tensor]]]:
    """The operator and the tensors of each side of each call, in order."""
    found: list[tuple[str, list[schema.Tensor]]] = []
    ops: dict[int, str] = {}
    for event in Recording(folder / "recording").events(lambda count: None):
        if isinstance(event.record, schema.Call):
            ops[event.record.n] = event.record.op
            found.append(
                (event.record.op, [each for each in event.record.args or () if isinstance(each, schema.Tensor)])
            )
        elif isinstance(event.record, schema.Return) and isinstance(event.record.out, schema.Tensor):
            found.append((f"{ops[event.record.n]} gave", [event.record.out]))
    return found


def near(found: Any, expected: Any) -> bool:
    """Bounds as they are; a mean as far as float32 sums tell."""
    *bounds, mean = [float(value) for value in found]
    *wanted, middle = [float(value) for value in expected]
    return bounds == wanted and math.isclose(mean, middle, rel_tol=1e-5, abs_tol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_every_call_has_the_statistics_of_its_own_tensors(tmp_path: Path, mode: str) -> None:
    done = run(tmp_path, "values", **MODES[mode])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    found = sides(tmp_path)
    assert len(found) == len(told["sides"])
    for (op, tensors), (name, expected) in zip(found, told["sides"], strict=True):
        assert op == name
        seen = [(each.min, each.max, each.mean) for each in tensors if each.statistics is None]
        assert all(near(*pair) for pair in zip(seen, expected, strict=True)), (op, seen, expected)
    assert told["in_c"] > 0.8
    lines = b"".join(path.read_bytes() for path in (tmp_path / "recording").glob(f"*/{layout.SEGMENTS}"))
    assert lines.count(b'"storages":') > 400


def test_after_an_illegal_access_all_that_came_before_is_known(tmp_path: Path) -> None:
    done = run(tmp_path, "illegal", FIRSTFAULT_STATS="async")
    assert done.returncode != 0
    assert "illegal memory access" in done.stderr
    last = [tensors[0].max for op, tensors in sides(tmp_path) if op == "scale" and tensors[0].statistics is None]
    assert last[-1] == 49.0


def test_where_the_device_is_waited_for_the_error_is_that_of_the_call(tmp_path: Path) -> None:
    done = run(tmp_path, "illegal")
    assert done.returncode != 0
    assert "illegal memory access" in done.stderr
    ops = [op for op, _ in sides(tmp_path)]
    assert ops[-1] == "store"


def test_graphs_that_another_thread_captures_are_left_whole(tmp_path: Path) -> None:
    done = run(tmp_path, "captured")
    assert (done.returncode, done.stdout) == (0, "captured 20 graphs\n"), done.stderr
