"""The same endings under ``firstfault run``, from a standing start: it ends alike, and reports by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstfault.record import layout
from tests.crash.harness import CRASHER, DEADLINE, FIRSTFAULT, PROGRAMS, environment, firstfault, report, until
from tests.crash.test_endings import ENDINGS, LEVELS, SLOW, check_dumps, check_recording, check_text

CONCLUSIONS = {
    "kill": "fatal (call 5) was in flight when process ",
    "segfault": "fatal (call 5) was in flight when process ",
    "hard_exit": "fatal (call 5) was in flight when process ",
    "thread": "fatal (call 5) was in flight when process ",
    "exception": "fatal (call 5) raised RuntimeError in process ",
}


def noted(recording: Path) -> dict[str, Any]:
    """What ``session.json`` says."""
    found: dict[str, Any] = json.loads((recording / layout.SESSION).read_text())
    return found


@pytest.mark.parametrize("ending", CONCLUSIONS)
def test_ends_like_the_command_and_reports(tmp_path: Path, ending: str) -> None:
    expected = ENDINGS[ending]
    command = ["sh", "-c", 'cd / && exec "$@"', "sh", sys.executable, str(CRASHER), ending]

    done = firstfault("run", "--dir", "recording", "--", *command, cwd=tmp_path)

    assert (done.status, done.stdout) == (expected.status, "")
    assert f"\n{CONCLUSIONS[ending]}" in done.stderr
    own = done.stderr.partition(f"\n{CONCLUSIONS[ending]}")[0]
    assert "firstfault: " not in own
    assert ("RuntimeError: no kernel image\nfor this device\n" in own) == (ending == "exception")
    session = noted(tmp_path / "recording")
    assert (session["exit_status"], session["signal"]) == (
        (None, -expected.status) if expected.status < 0 else (expected.status, None)
    )
    check_recording(tmp_path / "recording", expected, 3, session["pid"])
    assert (tmp_path / "recording" / layout.STDERR_TAIL).read_text() == own


def test_nothing_but_the_commands_own_output_when_it_goes_well(tmp_path: Path) -> None:
    """The death of a child is the command's to tell of; it is in the recording all the same."""
    done = firstfault("run", "--dir", tmp_path / "r", "--", sys.executable, str(CRASHER), SLOW)

    assert done.status == 0
    assert done.stderr.startswith("firstfault: recorded 6 calls of 2 processes, 1 of which did not end by itself in ")
    assert done.stderr.count("\n") == 1
    child = int(done.stdout.removeprefix("child ").removesuffix(" ended with -9\n"))
    check_recording(tmp_path / "r", ENDINGS[SLOW], 3, child)


@pytest.mark.parametrize("level", LEVELS)
def test_every_worker_of_a_fleet(tmp_path: Path, level: int) -> None:
    endings = [ending for ending in ENDINGS if ending != SLOW]
    environ = environment(FIRSTFAULT_LOGDEST=str(tmp_path / "log.%i.txt"))
    command = [sys.executable, str(PROGRAMS / "fleet.py"), *endings]

    done = firstfault("run", "--level", str(level), "--dir", tmp_path / "r", "--", *command, environ=environ)

    assert done.status == 0
    *theirs, last = done.stderr.splitlines()
    assert "firstfault: " not in "".join(theirs)
    assert last.startswith("firstfault: recorded ")
    told = [line.split() for line in done.stdout.splitlines() if not line.startswith("child ")]
    assert [(ending, int(status)) for ending, _, status in told] == [
        (ending, ENDINGS[ending].status) for ending in endings
    ]
    children = iter([line.split()[1] for line in done.stdout.splitlines() if line.startswith("child ")])
    processes = {process["pid"]: process for process in report(tmp_path / "r")["processes"]}
    for ending, worker, _ in told:
        expected = ENDINGS[ending]
        fatal = int(next(children)) if expected.in_child else int(worker)
        assert (processes[fatal]["suspect"]["op"], processes[fatal]["suspect"]["n"]) == ("fatal", expected.number)
        (folder,) = (tmp_path / "r").glob(f"*-{fatal}")
        check_recording(folder, expected._replace(in_child=False), level, fatal)
        if not expected.in_child:
            check_text(tmp_path / f"log.{fatal}.txt", expected, level, fatal)
        if level == 10:
            check_dumps(folder / layout.DUMPS, expected, fatal)


def test_recording_of_a_process_that_is_still_running(tmp_path: Path) -> None:
    recording = tmp_path / "r"
    command = [*FIRSTFAULT, "run", "--level", "10", "--dir", str(recording), "--", sys.executable, str(CRASHER), "hang"]
    running = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert running.stdout is not None
        line = until(running.stdout.readline, "the program to hang").decode()
        pid = int(line.removeprefix("hanging "))

        found = report(recording)

        assert found["ended"] == "not yet: it is running"
        assert found["conclusion"].startswith("fatal (call 5) is in flight: process ")
        check_recording(recording, ENDINGS["kill"], 10, pid)
        (dumps,) = recording.glob(f"*-{pid}/{layout.DUMPS}")
        check_dumps(dumps, ENDINGS["kill"], pid)
    except BaseException:
        os.killpg(running.pid, signal.SIGKILL)
        raise

    os.kill(pid, signal.SIGKILL)
    _, stderr = running.communicate(timeout=DEADLINE)

    assert running.returncode == -signal.SIGKILL
    assert b"\nfatal (call 5) was in flight when process " in stderr
    assert report(recording)["ended"] == "killed by SIGKILL"


def test_run_that_is_killed_itself_leaves_a_recording(tmp_path: Path) -> None:
    recording = tmp_path / "r"
    command = [*FIRSTFAULT, "run", "--dir", str(recording), "--", sys.executable, str(CRASHER), "hang"]
    running = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert running.stdout is not None
    pid = int(until(running.stdout.readline, "the program to hang").decode().removeprefix("hanging "))

    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=DEADLINE)

    check_recording(recording, ENDINGS["kill"], 3, pid)
    assert report(recording)["ended"] == "no end recorded: firstfault run was killed with it"


def test_report_of_the_command_line_is_the_same(tmp_path: Path) -> None:
    """What the other tests ask in this process, asked once from outside."""
    done = firstfault("run", "--dir", tmp_path / "r", "--", "sh", "-c", "exit 5")
    assert done.status == 5

    outside = firstfault("report", tmp_path / "r", "--json")

    assert (outside.status, outside.stderr) == (0, "")
    assert json.loads(outside.stdout) == report(tmp_path / "r")
