"""The device's own word on which call it was in, against faults planted in call 37 of 100."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firstfault.diagnose.device import Position, Reach, positions
from firstfault.read.formats import marker_page
from firstfault.read.formats.recording import Recording
from firstfault.read.marks import Order
from firstfault.record import layout, schema

PROGRAM = Path(__file__).parent / "programs" / "faults.py"
DEADLINE = 120.0
IN_STEP = [
    "illegal_store",
    "illegal_load",
    "shared_out_of_bounds",
    "misaligned",
    "trap",
    "triton_store",
    "device_assert",
    "cublas",
    "side_stream",
]


def start(folder: Path, kind: str, **chosen: str) -> subprocess.Popen[str]:
    environ = os.environ | {"FIRSTFAULT_DIR": str(folder / "recording"), "FIRSTFAULT_LOGLEVEL": "1"} | chosen
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), kind], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def where(folder: Path) -> list[Position]:
    """Where each stream of the only process stood."""
    recording = Recording(folder / "recording")
    order = Order()
    for event in recording.events(lambda count: None):
        if isinstance(event.record, (schema.Call, schema.Return, schema.Raise)):
            order.take(event.record)
    (process,) = recording.segments
    page = marker_page.find(folder / "recording" / process)
    assert page is not None
    return positions(page, order)


@pytest.mark.parametrize("kind", IN_STEP)
def test_a_fault_in_a_call(tmp_path: Path, kind: str) -> None:
    stderr = start(tmp_path, kind).communicate(timeout=DEADLINE)[1]
    first = where(tmp_path)[0]
    assert (first.reach, first.call) == (Reach.IN_CALL, 37), stderr[-2000:]


def test_a_fault_in_a_nested_call(tmp_path: Path) -> None:
    start(tmp_path, "nested").communicate(timeout=DEADLINE)
    first = where(tmp_path)[0]
    assert (first.reach, first.call) == (Reach.IN_CALL, 74)


def test_a_fault_between_calls(tmp_path: Path) -> None:
    start(tmp_path, "unrecorded").communicate(timeout=DEADLINE)
    first = where(tmp_path)[0]
    assert (first.reach, first.call) == (Reach.UNRECORDED, 37)


def test_a_kernel_that_never_ends(tmp_path: Path) -> None:
    process = start(tmp_path, "never_ends")
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE)
        assert ready
        assert process.stdout.readline() == "host done\n"
        time.sleep(0.2)  # nothing tells that a device will never get on
        first = where(tmp_path)[0]
        assert (first.reach, first.call, first.host) == (Reach.IN_CALL, 37, 100)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)


def test_a_fault_in_the_replay_of_a_graph(tmp_path: Path) -> None:
    start(tmp_path, "graph_replay", FIRSTFAULT_GRAPHS="record").communicate(timeout=DEADLINE)
    inside = where(tmp_path)[0].inside
    assert inside is not None
    assert (inside.graph, inside.replays, inside.reach, inside.call) == (1, 3, Reach.IN_CALL, 38)


def test_a_graph_without_markers_is_named_by_its_replay(tmp_path: Path) -> None:
    start(tmp_path, "graph_replay").communicate(timeout=DEADLINE)
    first = where(tmp_path)[0]
    assert (first.reach, first.call, first.inside) == (Reach.IN_CALL, 104, None)


def test_a_black_box_names_the_call_too(tmp_path: Path) -> None:
    start(tmp_path, "illegal_store", FIRSTFAULT_MODE="blackbox").communicate(timeout=DEADLINE)
    first = where(tmp_path)[0]
    assert (first.reach, first.call) == (Reach.IN_CALL, 37)


def test_no_fault(tmp_path: Path) -> None:
    process = start(tmp_path, "none")
    _, stderr = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, stderr
    (folder,) = (tmp_path / "recording").iterdir()
    assert not layout.marker_page(folder).exists()
