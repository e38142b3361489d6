"""Servers that are started for a replay: up before it, gone after it, started again once they have died."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from firstfault.errors import ExitCode
from firstfault.record.requests import SCHEMA_VERSION, Opening, Request, save
from firstfault.replay import harness
from firstfault.replay.incident import Verdict
from firstfault.replay.symptoms import Criterion, Symptom
from firstfault.replay.target import CannotTell, Target
from firstfault.serving.replay import Plan
from tests.ports import free_port

TINY = Path(__file__).parent / "tiny_server.py"
CRITERION = Criterion(Symptom.FAILURE)


def line(port: int, dies_from: int = 10) -> str:
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(TINY))} {port} {dies_from}"


def ask(characters: int) -> Request:
    return Request("/generate", {"text": "x" * characters}, id=f"{characters}")


def is_there(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_server_is_started_restarted_and_stopped_with_its_workers(tmp_path: Path) -> None:
    port = free_port()
    told: list[str] = []
    with Target(f"http://127.0.0.1:{port}", launch=line(port), log=tmp_path / "server.log", tell=told.append) as target:
        assert target.attempt([ask(3)], Plan(), CRITERION).judged.verdict is Verdict.NOT_REPRODUCED
        first = target.pid
        assert target.attempt([ask(3), ask(10)], Plan(), CRITERION).judged.verdict is Verdict.REPRODUCED
        assert target.attempt([ask(3)], Plan(), CRITERION).judged.verdict is Verdict.NOT_REPRODUCED
        assert target.pid != first
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            worker = json.load(answer)["worker"]
        assert is_there(worker)
    assert target.pid is None
    deadline = time.monotonic() + 60
    while is_there(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_there(worker)
    assert sum("starting it again" in text for text in told) == 1
    assert (tmp_path / "server.log").read_text() == "planted: out of memory\n"
    assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600


def test_a_server_that_does_not_come_up_cannot_tell(tmp_path: Path) -> None:
    port = free_port()
    target = Target(f"http://127.0.0.1:{port}", launch="echo no such model; exit 3", log=tmp_path / "server.log")
    with pytest.raises(CannotTell, match=r"ended with status 3; see .*: no such model") as caught:
        target.attempt([ask(1)], Plan(), CRITERION)
    assert caught.value.exit_code == ExitCode.CANNOT_TELL
    slow = Target(f"http://127.0.0.1:{port}", launch="sleep 60", log=tmp_path / "server.log", start_seconds=0.5)
    with pytest.raises(CannotTell, match=r"is not healthy after 0\.5 s"):
        slow.attempt([ask(1)], Plan(), CRITERION)
    assert slow.pid is None


def test_a_server_that_is_there_already_is_not_started_over(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Target(url, launch=line(port), log=tmp_path / "one.log") as running:
        running.ready()
        with pytest.raises(CannotTell, match=r"answers at .* already"):
            Target(url, launch=line(port), log=tmp_path / "two.log").ready()


def test_no_server_cannot_tell() -> None:
    with pytest.raises(CannotTell, match="no server answers at"):
        Target(f"http://127.0.0.1:{free_port()}").attempt([ask(1)], Plan(), CRITERION)


@pytest.mark.parametrize(
    ("characters", "build", "status"), [(3, "", 0), (10, "", 1), (3, "exit 1", 125), (3, "touch built", 0)]
)
def test_a_harness_is_a_script_by_itself(tmp_path: Path, characters: int, build: str, status: int) -> None:
    port = free_port()
    script = tmp_path / "it's a harness.sh"
    options = {
        "--base-url": f"http://127.0.0.1:{port}",
        "--launch": line(port),
        "--symptom": "failure",
        "--no-stream": None,
    }
    words = [sys.executable, "-m", "firstfault"]
    beside = harness.write(script, Opening(SCHEMA_VERSION), [ask(characters)], words, options)
    text = script.read_text()
    harness.write(script, Opening(SCHEMA_VERSION), [ask(characters)], words, options)
    assert script.read_text() == text
    assert os.access(script, os.X_OK)
    elsewhere = tmp_path / "checkout"
    elsewhere.mkdir()
    environ = {**os.environ, "BUILD": build, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([str(script)], cwd=elsewhere, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == status, done.stderr
    assert (elsewhere / "built").exists() == build.startswith("touch")
    if status == 0 and not build:
        beside.unlink()
        done = subprocess.run([str(script)], cwd=elsewhere, env=environ, capture_output=True, text=True, timeout=240)
        assert done.returncode == 125, "wrong usage is no bad commit"


def test_what_is_saved_beside_a_harness_is_whole(tmp_path: Path) -> None:
    save(tmp_path / "r.jsonl", Opening(SCHEMA_VERSION), [ask(1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl"]
