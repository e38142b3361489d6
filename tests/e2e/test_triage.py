"""Bundles of real servers: healthy, loaded, starved, stopped and killed, each with its class and next step."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import Server, serving
from tests.e2e.setup import HERE, STAND_INS

PLANTED = HERE / "planted"
METRICS = ("--enable-metrics", "--max-running-requests", "4", "--decode-log-interval", "10")
STARVED = ("--max-total-tokens", "320", "--max-running-requests", "32")
LOCAL = ("--local", "--timeout", "8")


def triage(*words: str | Path, status: int = 0, cwd: Path | None = None) -> str:
    command = [sys.executable, "-m", "firstfault", "triage", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr)
    return done.stdout


def summary(server: Server, folder: Path, *words: str, status: int = 0) -> dict[str, Any]:
    """The summary of a bundle that is taken now."""
    triage("collect", "--base-url", server.url, "--out", folder, "--interval", "3", *words, status=status)
    found: dict[str, Any] = json.loads(triage("summarize", folder, "--json", status=status))
    print(triage("summarize", folder, status=status))
    return found


def problem(found: dict[str, Any]) -> str:
    return str(found["contract"]["problem_class"])


@contextlib.contextmanager
def loaded(server: Server, clients: int, tokens: int, words: int = 10) -> Iterator[None]:
    """A server that so many clients send one request after the other to."""
    over = threading.Event()

    def ask(client: int) -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            prompt = f"{client} {turn} " + "hello " * words
            sampling: dict[str, Any] = {"max_new_tokens": tokens, "ignore_eos": True}
            body: dict[str, Any] = {"text": prompt, "sampling_params": sampling}
            if server.engine == "vllm":
                body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
            path = "/v1/completions" if server.engine == "vllm" else "/generate"
            request = urllib.request.Request(
                server.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            try:
                urllib.request.urlopen(request, timeout=300).read()
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)

    clients_ = [threading.Thread(target=ask, args=(client,), daemon=True) for client in range(clients)]
    for one in clients_:
        one.start()
    time.sleep(4.0)
    try:
        yield
    finally:
        over.set()


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sglang")
    with serving("sglang", folder / "server.log", options=(*METRICS, "--crash-dump-folder", str(folder))) as server:
        yield server


def test_a_healthy_server_that_idles(sglang: Server, tmp_path: Path) -> None:
    found = summary(sglang, tmp_path / "b")
    assert found["lines"]["Health"] == {"/health": "ok", "/health_generate": "ok"}
    assert found["engine"] == "sglang"
    assert problem(found) == "idle snapshot"
    assert "firstfault triage watch" in found["contract"]["next_step"]


def test_a_healthy_server_at_work(sglang: Server, tmp_path: Path) -> None:
    with loaded(sglang, clients=2, tokens=200):
        found = summary(sglang, tmp_path / "b", "--passive")
    assert problem(found) == "no problem seen", found["signals"]
    assert found["lines"]["Window"]["metrics"] == "window"
    assert float(found["lines"]["Window"]["generation_tokens_per_s"]) > 0


def test_a_loaded_server_queues(sglang: Server, tmp_path: Path) -> None:
    with loaded(sglang, clients=12, tokens=200):
        found = summary(sglang, tmp_path / "b")
    assert problem(found) == "queueing"
    assert "all 4 slots" in found["contract"]["best_guess"]
    assert "triage capture" in found["contract"]["next_step"]
    page = triage("summarize", tmp_path / "b", "--format", "html")
    assert page.count("<svg") == 4
    assert "http://www.w3.org" in page
    assert "<script" not in page


def test_a_profile_shows_what_takes_the_time(sglang: Server, tmp_path: Path) -> None:
    with loaded(sglang, clients=3, tokens=100):
        summary(sglang, tmp_path / "b")
        told = triage("next", tmp_path / "b", "--profile", "3", cwd=tmp_path)
    assert "decode, TP-0: " in told  # of prefill too, unless SGLang's profiler began in the midst of decode
    assert "aten::" in told


def test_a_stopped_scheduler_is_a_stall(sglang: Server, tmp_path: Path) -> None:
    worker = sglang.worker()
    with loaded(sglang, clients=6, tokens=400):
        os.kill(worker, signal.SIGSTOP)
        try:
            found = summary(sglang, tmp_path / "b", *LOCAL, status=3)
        finally:
            os.kill(worker, signal.SIGCONT)
    assert problem(found) == "hang or stall"
    assert found["contract"]["confidence"] == "high"
    assert found["contract"]["next_step"] == f"kill -CONT {worker}"
    assert "SIGSTOP" in found["contract"]["best_guess"]


def test_a_watch_takes_the_bundle_of_a_stall(sglang: Server, tmp_path: Path) -> None:
    worker = sglang.worker()
    places = ("--ring", str(tmp_path / "ring"), "--out", str(tmp_path / "b"))
    with loaded(sglang, clients=3, tokens=400):
        threading.Timer(8.0, os.kill, (worker, signal.SIGSTOP)).start()
        try:
            triage("watch", sglang.url, "--every", "2", "--for", "90", *places, "--timeout", "8", status=1)
        finally:
            os.kill(worker, signal.SIGCONT)
    found = json.loads(triage("summarize", tmp_path / "b", "--json", status=3))
    assert problem(found) == "hang or stall"
    assert len(found["at"]) > 4


def test_a_killed_scheduler_is_a_crash(sglang: Server, tmp_path: Path) -> None:
    worker = sglang.worker()
    with loaded(sglang, clients=6, tokens=400):
        os.kill(worker, signal.SIGKILL)
        time.sleep(1.0)
        found = summary(sglang, tmp_path / "b", *LOCAL, "--log", str(sglang.log), status=3)
    assert problem(found) == "crash of a worker"
    assert "SIGKILL" in found["contract"]["strongest_signal"]
    assert "triage requests" in found["contract"]["next_step"]
    assert "firstfault run" in triage("next", tmp_path / "b")


def test_a_starved_server_lacks_capacity(tmp_path: Path) -> None:
    starved = serving("sglang", tmp_path / "server.log", options=("--enable-metrics", *STARVED))
    with starved as server, loaded(server, clients=12, tokens=120):
        found = summary(server, tmp_path / "b", "--local")
    assert problem(found) in ("KV or token-capacity pressure", "retraction or preemption storm")
    assert found["contract"]["next_step"].startswith("firstfault triage capture")


def test_a_slow_prefill_is_told_from_a_queue(tmp_path: Path) -> None:
    planted = {
        "PYTHONPATH": f"{PLANTED}{os.pathsep}{STAND_INS}",
        "PLANTED_SLOW_TOKENS": "300",
        "PLANTED_SLOW_SECONDS": "3",
    }
    with serving("sglang", tmp_path / "server.log", environ=planted, options=METRICS) as server:
        for _ in range(12):
            server.generate("a request from before", 8)
        asking = threading.Timer(1.0, server.generate, ("hello " * 600, 8))
        asking.start()
        found = summary(server, tmp_path / "b", "--passive", "--interval", "8")
        asking.join()
    assert problem(found) == "prefill-side latency", found["signals"]
    assert found["lines"]["Metrics"]["requests"] == "1"
    assert float(found["lines"]["Metrics"]["avg_ttft_s"]) > 3
    assert float(found["lines"]["Since start"]["avg_ttft_s"]) < 1.5
    assert float(found["lines"]["Metrics"]["avg_queue_s"]) < 0.2
    assert found["stages"]["prefill_forward"] > 3
    assert any("queue pressure" in one for one in found["contract"]["ruled_out"])


def test_vllm_idle_loaded_and_killed(tmp_path: Path) -> None:
    with serving("vllm", tmp_path / "server.log", options=("--max-num-seqs", "4")) as server:
        idle = summary(server, tmp_path / "idle")
        assert idle["engine"] == "vllm"
        assert problem(idle) == "idle snapshot"
        with loaded(server, clients=12, tokens=400):
            found = summary(server, tmp_path / "loaded")
            assert problem(found) == "queueing"
            assert "triage proxy" in found["contract"]["next_step"]
            os.kill(server.worker(), signal.SIGKILL)
            time.sleep(1.0)
            triage("collect", "--base-url", server.url, "--out", tmp_path / "killed", "--log", server.log, status=3)
        killed = json.loads(triage("summarize", tmp_path / "killed", "--json", status=3))
        assert problem(killed) == "crash of a worker"
