"""``live`` of what has no markers: why, and where to look instead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firstfault.errors import UnreadableInput
from firstfault.read import live
from tests.unit.read.samples import call, header, recording


@contextmanager
def process(**environ: str) -> Iterator[int]:
    """A process that waits, started in this environment."""
    waiting = subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"],
        env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert waiting.stdout is not None
    waiting.stdout.readline()
    try:
        yield waiting.pid
    finally:
        waiting.communicate()


def said(pid: int) -> str:
    with pytest.raises(UnreadableInput) as raised:
        live.recording_of(pid)
    return str(raised.value)


def test_no_such_process() -> None:
    assert said(2**22 + 1) == f"no process {2**22 + 1}; give the recording of one that is gone"


@pytest.mark.parametrize("environ", [
    {}, {"FIRSTFAULT_LOGLEVEL": "3"}, {"FIRSTFAULT_DIR": "/r"}, {"FIRSTFAULT_DIR": "/r", "FIRSTFAULT_LOGLEVEL": "x"},
])  # fmt: skip
def test_a_process_that_is_not_recorded(environ: dict[str, str]) -> None:
    with process(**environ) as pid:
        assert said(pid) == f"process {pid} is not recorded; start it with firstfault run"


def test_a_recorded_process_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with process(FIRSTFAULT_DIR="recording", FIRSTFAULT_LOGLEVEL="3") as pid:
        folder = os.path.realpath(tmp_path / "recording")
        assert said(pid) == f"process {pid} has called no boundary yet that would be recorded to {folder}"
        recording(tmp_path, [header(pid=pid), call(1)], name=f"vm-{pid}")
        assert said(pid) == (
            f"process {pid} has used no GPU yet, so there are no markers; its host position: firstfault report {folder}"
        )


@pytest.mark.parametrize(("records", "text"), [
    ([header(), call(1)], "has used a GPU, so there are no markers; its host position: firstfault report "),
    ([], "holds no recorded process"),
])  # fmt: skip
def test_a_recording_without_markers(tmp_path: Path, records: list[object], text: str) -> None:
    path = recording(tmp_path, records) if records else tmp_path  # type: ignore[arg-type]
    with pytest.raises(UnreadableInput, match=text):
        live.marked(path)
