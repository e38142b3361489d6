"""``firstfault bisect precision`` as it is typed, with a process for every run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.unit.cli.command import command, run

PROGRAMS = Path(__file__).parent.parent / "bisect"
PLANTED = [sys.executable, "-S", str(PROGRAMS / "planted.py"), "{dir}/out.json"]
PROBE = ["--probe", "tensors:{dir}/out.json"]


def faults(*told: dict[str, Any]) -> str:
    return json.dumps(told)


def precision(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return run("bisect", "precision", "--plugin", "sglang", "--dir", folder / "bisection", *words, **options)


def test_a_culprit_is_found_in_processes_of_their_own(tmp_path: Path) -> None:
    program = [*PLANTED, faults({"with": ["fused_7"], "size": 0.01})]
    done = precision(tmp_path, *PROBE, "--", *program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FOUND: fused fused_7 makes the difference")
    assert "run 1, baseline: all off" in done.stderr
    again = precision(tmp_path, *PROBE, "--json", "--", *program)
    assert again.stderr == ""
    found = json.loads(again.stdout)
    assert found["verdict"] == "FOUND"
    assert found["runs"] <= 12
    alone = next(step for step in found["steps"] if step["configuration"] == "fused fused_7; aten none")
    repeated = subprocess.run(["sh", "-c", alone["command"]], check=True, capture_output=True)
    assert repeated.returncode == 0
    written = json.loads(next((tmp_path / "bisection" / "runs" / "0008").glob("out.json")).read_text())
    assert written[0] == pytest.approx(1.01, rel=1e-6)


def test_nothing_of_the_bisection_is_left_in_an_ordinary_run(tmp_path: Path) -> None:
    program = [*PLANTED, faults({"with": ["fused_7"], "size": 0.01})]
    before = set(tmp_path.iterdir())
    precision(tmp_path, *PROBE, "--max-runs", "4", "--", *program, cwd=tmp_path)
    assert set(tmp_path.iterdir()) - before == {tmp_path / "bisection"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "bisection").glob("*"))


def test_a_killed_bisection_goes_on_without_repeating_a_run(tmp_path: Path) -> None:
    slow = "import os, sys, time; time.sleep(0.15); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    program = [sys.executable, "-c", slow, *PLANTED[1:], faults({"with": ["aten_7"], "size": 0.01})]
    words = command(
        "bisect", "precision", "--plugin", "sglang", "--dir", tmp_path / "bisection", *PROBE, "--json", "--", *program
    )
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if "run 4" in line:
                time.sleep(0.05)
                first.send_signal(signal.SIGKILL)
                break
    done = precision(tmp_path, *PROBE, "--json", "--", *program)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if "run 1," in line or "run 4," in line]
    journal = [json.loads(line) for line in (tmp_path / "bisection" / "bisect.jsonl").read_text().splitlines()]
    numbers = [line["n"] for line in journal if line["type"] == "run"]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == json.loads(done.stdout)["runs"]


def test_interrupting_it_ends_the_run(tmp_path: Path) -> None:
    program = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    words = command("bisect", "precision", "--plugin", "sglang", "--dir", tmp_path / "bisection", "--", *program)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        journal = tmp_path / "bisection" / "bisect.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (journal.exists() and b"began" in journal.read_bytes()):
            time.sleep(0.02)
        pid = json.loads(journal.read_text().splitlines()[-1])["pid"]
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("told", "status", "verdict"),
    [
        ([], 3, "NOT_REPRODUCED"),
        ([{"size": float("nan")}], 1, "BASELINE_BAD"),
        ([{"noise": 0.5}], 125, "NOISE"),
    ],
)
def test_the_exit_status_is_the_verdict(tmp_path: Path, told: list[dict[str, Any]], status: int, verdict: str) -> None:
    done = precision(tmp_path, *PROBE, "--rate", "0.8", "--", *PLANTED, faults(*told))
    assert done.stdout.startswith(f"{verdict}: ")
    assert done.returncode == status


def test_the_commands_own_exit_status_is_a_probe(tmp_path: Path) -> None:
    check = (
        f"import os, sys; sys.path.insert(0, {str(PROGRAMS)!r}); from planted import on, write_logs; "
        "write_logs(os.environ); sys.exit('fused_3' in on(os.environ))"
    )
    done = precision(tmp_path, "--", sys.executable, "-S", "-c", check)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FOUND: fused fused_3 makes the difference")


def test_a_file_that_is_always_the_same_is_copied_from_where_it_is_written(tmp_path: Path) -> None:
    program = [*PLANTED[:3], "out.json", faults({"with": ["aten_2"], "size": 0.01})]
    done = precision(tmp_path, "--probe", "tensors:out.json", "--", *program, cwd=tmp_path)
    assert done.stdout.startswith("FOUND: aten aten_2"), done.stderr


def test_a_file_that_was_not_written_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("[1.0]")
    done = precision(tmp_path, "--probe", "tensors:old.json", "--", "true", cwd=tmp_path)
    assert done.returncode == 1
    assert "has not written the file" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--probe", "nope", "--", "true"], "none of the accepted forms"),
        (["--serve", "--", "true"], "--requests"),
        (["--requests", "r.jsonl", "--", "true"], "--serve"),
        (["--plugin", "jax", "--", "true"], "sglang, vllm"),
        (["--expect", "missing.json", "--probe", "tensors:x.json", "--", "true"], "missing.json"),
        (["--expect", "x", "--probe", "score:stdout", "--", "true"], "neither a file nor a score"),
        (["--", "no-such-program-here"], "no such program"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = precision(tmp_path, *words)
    assert done.returncode in (2, 127)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_secrets_of_the_command_are_not_told(tmp_path: Path) -> None:
    program = [*PLANTED, faults({"with": ["aten_2"], "size": 0.01}), "--api-key", "sk-very-secret-key-0123456789"]
    done = precision(tmp_path, *PROBE, "--json", "--max-runs", "4", "--", *program)
    assert done.returncode == 3
    assert "OUT_OF_RUNS" in done.stdout
    assert "very-secret" not in done.stdout + done.stderr + (tmp_path / "bisection" / "bisect.jsonl").read_text()


@pytest.fixture
def serving(tmp_path: Path) -> list[str]:
    bodies = ({"text": "one"}, {"text": "two", "stream": True})
    lines = (json.dumps({"path": "/generate", "body": body}) + "\n" for body in bodies)
    (tmp_path / "requests.jsonl").write_text("".join(lines))
    program = [sys.executable, "-S", str(PROGRAMS / "serving_planted.py"), "--port", str(free_port())]
    return ["--serve", "--requests", str(tmp_path / "requests.jsonl"), "--", *program]


def test_a_server_is_started_asked_and_ended(tmp_path: Path, serving: list[str]) -> None:
    done = precision(tmp_path, *serving, faults({"with": ["aten_20"], "size": 0.01}))
    assert done.stdout.startswith("FOUND: aten aten_20"), done.stderr + done.stdout
    answers = (tmp_path / "bisection" / "runs" / "0001" / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 2
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_ours(pid, serving[-1])]
    assert left == []


def test_a_server_that_is_there_already_is_not_asked(tmp_path: Path, serving: list[str]) -> None:
    with socket.create_server(("127.0.0.1", int(serving[-1]))):
        done = precision(tmp_path, *serving, faults(), timeout=120)
    assert done.returncode == 2
    assert "serves at" in done.stderr


def test_a_server_that_does_not_start_is_a_wrong_baseline(tmp_path: Path, serving: list[str]) -> None:
    done = precision(tmp_path, *serving, "no json")
    assert done.returncode == 1
    assert "JSONDecodeError" in done.stdout


def _is_ours(pid: str, port: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return port.encode() in words and any(word.endswith(b"serving_planted.py") for word in words)
