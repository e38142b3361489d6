"""SGLang and vLLM serve under ``firstfault run`` what they serve without, and a killed worker is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from firstfault.read.calls import Call
from firstfault.read.evidence import gather
from firstfault.read.session import open_source
from tests.e2e.engines import WORKERS, Server, serving

FIRSTFAULT = (sys.executable, "-m", "firstfault")
ENGINES = ("sglang", "vllm")
KILL_SECONDS = 60.0
_OWN_CALL = re.compile(r"SGLang Kernel API Call: (.+)")


def names(recording: Path) -> Counter[str]:
    """How often each operator was called, in all processes."""
    found: Counter[str] = Counter()
    for event in open_source(recording).events(lambda count: None):
        found[getattr(event.record, "op", "")] += 1
    return found


@pytest.fixture(scope="module", params=ENGINES)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """An engine, and what it answers without recording."""
    folder = tmp_path_factory.mktemp(request.param)
    with serving(request.param, folder / "plain.log") as server:
        answers = server.answers()
        assert answers == server.answers(), "it answers greedily, so equal prompts have equal answers"
    return request.param, answers


@pytest.mark.parametrize("level", [1, 3, 5])
def test_tokens_are_what_they_are_without(plain: tuple[str, list[str]], level: int, tmp_path: Path) -> None:
    engine, expected = plain
    recording = tmp_path / "recording"
    prefix = [*FIRSTFAULT, "run", "--level", str(level), "--dir", str(recording), "--"]
    without_caches = {"FIRSTFAULT_STATS_MAX_BYTES": "64M"}  # vLLM's smallest is half a gigabyte a layer
    with serving(engine, tmp_path / "server.log", prefix, without_caches) as server:
        assert server.answers() == expected
    found = names(recording)
    assert sum(count for op, count in found.items() if "Attention" in op or "attn" in op) > 100
    assert sum(count for op, count in found.items() if op.startswith("Qwen3")) > 100


def test_every_boundary_of_sglangs_own_logger_is_one_of_ours(tmp_path: Path) -> None:
    own = {"SGLANG_KERNEL_API_LOGLEVEL": "1", "SGLANG_KERNEL_API_LOGDEST": str(tmp_path / "own-%i.log")}
    with serving("sglang", tmp_path / "own.log", environ=own) as server:
        server.answers()
    logged = Counter(
        line for log in tmp_path.glob("own-*.log") for line in _OWN_CALL.findall(log.read_text(errors="replace"))
    )
    recording = tmp_path / "recording"
    prefix = [*FIRSTFAULT, "run", "--level", "1", "--dir", str(recording), "--"]
    with serving("sglang", tmp_path / "ours.log", prefix) as server:
        server.answers()
    found = names(recording)
    assert logged
    assert set(logged) <= set(found)
    assert len(found) > 5 * len(logged)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_killed_in_the_middle_of_a_batch_is_named(engine: str, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    prefix = [*FIRSTFAULT, "run", "--level", "3", "--dir", str(recording), "--"]
    with serving(engine, tmp_path / "server.log", prefix) as server:
        victim, call = kill_in_a_call(server, recording)
        server.process.wait(90)
    report = subprocess.run(
        [*FIRSTFAULT, "report", str(recording)], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert f"{call.op} (call {call.n}) was in flight when process" in report.stdout.splitlines()[0], report.stdout
    assert f"-{victim}" in report.stdout.splitlines()[0]
    if engine == "sglang":  # vLLM's worker names itself after its first call, when its record has begun
        assert WORKERS[engine] in report.stdout


def kill_in_a_call(server: Server, recording: Path) -> tuple[int, Call]:
    """Kill the process that runs the model while it is in a call; which call that is."""
    victim = server.worker()
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        with server.asked("tell me a long story", 1500) as asking:
            time.sleep(1)
            while asking.poll() is None and time.monotonic() < deadline:
                os.kill(victim, signal.SIGSTOP)
                in_flight = _in_flight(recording, victim)
                if in_flight:
                    os.kill(victim, signal.SIGKILL)
                    return victim, in_flight[0]
                os.kill(victim, signal.SIGCONT)
                time.sleep(0.1)
    raise AssertionError("it was never in a call")


def _in_flight(recording: Path, pid: int) -> list[Call]:
    processes = gather(recording, lambda count: None).history.processes
    return [call for name, process in processes.items() if name.endswith(f"-{pid}") for call in process.in_flight()]
