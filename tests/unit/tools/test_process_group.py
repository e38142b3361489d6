"""A command and all that it has started, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firstfault.tools import process_group
from firstfault.tools.runner import CannotStart

SPAWNS = "sleep 60 & echo $! > child; wait"
STUBBORN = "trap '' TERM; sleep 60 & echo $! > child; while true; do sleep 1; done"


def start(folder: Path, *words: str) -> process_group.Group:
    environ = {"PATH": os.environ["PATH"]}
    return process_group.start(words, environ, folder / "stdout", folder / "stderr")


def child(folder: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        text = (folder / "child").read_text() if (folder / "child").exists() else ""
        if text.strip():
            return int(text)
        time.sleep(0.02)
    raise AssertionError("it has started nothing")


def runs(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_it_writes_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    with start(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 3") as group:
        assert group.wait(60) == 3
    assert (tmp_path / "stdout").read_text() == "out\n"
    assert (tmp_path / "stderr").read_text() == "err\n"
    assert (tmp_path / "stdout").stat().st_mode & 0o777 == 0o600


def test_a_signal_is_told(tmp_path: Path) -> None:
    with start(tmp_path, "sh", "-c", "kill -SEGV $$") as group:
        assert group.wait(60) == -signal.SIGSEGV


def test_what_still_runs_is_told(tmp_path: Path) -> None:
    with start(tmp_path, "sleep", "60") as group:
        assert group.wait(0.05) is None
    assert not runs(group.pid)


@pytest.mark.parametrize("script", [SPAWNS, STUBBORN])
def test_what_it_has_started_ends_with_it(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group = start(tmp_path, "bash", "-c", script)
    started = child(tmp_path)
    group.end(0.3)
    assert not runs(started)
    assert not runs(group.pid)


def test_what_it_leaves_behind_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with start(tmp_path, "bash", "-c", "sleep 60 & echo $! > child; exit 0") as group:
        assert group.wait(60) == 0
        started = child(tmp_path)
        assert runs(started)
    assert not runs(started)


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="no such program"):
        start(tmp_path, "no-such-program-here")


def test_what_another_has_left_running_is_ended_by_its_start(tmp_path: Path) -> None:
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    started = process_group.start_ticks(left.pid)
    assert started is not None
    assert not process_group.end_left_over(left.pid, started + 1)  # another process of the same number
    assert left.poll() is None
    assert process_group.end_left_over(left.pid, started)
    assert left.wait(60) == -signal.SIGTERM
    assert not process_group.end_left_over(left.pid, started)
