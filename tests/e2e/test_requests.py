"""Requests of real servers: saved, replayed, shrunk, recorded by the proxy, and the whole way after a crash.

A fault is planted in SGLang: prefill takes a second longer from 37 tokens of a prompt on, and dies from 200 on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import PROMPTS, Server, launch_line, serving
from tests.e2e.setup import HERE, STAND_INS
from tests.ports import free_port

SLOW, SECONDS, CRASH = 37, 1.0, 200
PLANTED = {
    "PYTHONPATH": os.pathsep.join((str(HERE / "planted"), str(STAND_INS))),
    "PLANTED_SLOW_TOKENS": str(SLOW),
    "PLANTED_SLOW_SECONDS": str(SECONDS),
    "PLANTED_CRASH_TOKENS": str(CRASH),
}
LONG = "The quick brown fox jumps over the lazy dog and runs away into the forest where nobody can find it"
PROXIED = 40


def firstfault(*words: str | Path, timeout: float = 300, status: int = 0) -> str:
    """What a command prints, of which the exit status is known."""
    done = subprocess.run(
        [sys.executable, "-m", "firstfault", *map(str, words)], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def ask(url: str, path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    with serving("sglang", log, environ=PLANTED, options=("--enable-metrics",)) as server:
        yield server


@contextlib.contextmanager
def capturing(server: Server, folder: Path) -> Iterator[None]:
    """The server's own dumps, switched on meanwhile."""
    words = [sys.executable, "-m", "firstfault", "triage", "capture", server.url, "--dump-requests", str(folder)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "the server saves requests into" in process.stderr.readline()
        yield
        process.terminate()
        assert "no longer saves requests" in process.stderr.read()
        assert process.wait(60) == 0


def test_a_dump_of_requests_is_replayed(sglang: Server, tmp_path: Path) -> None:
    saved, back = tmp_path / "requests.jsonl", tmp_path / "back.jsonl"
    with capturing(sglang, tmp_path / "dumps"):
        answers = sglang.answers()
        ask(sglang.url, "/v1/chat/completions", {
            "model": "any", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0,
        })  # fmt: skip
    summary = json.loads(firstfault("triage", "requests", tmp_path / "dumps", "--export", saved, "--json"))
    assert (summary["count"], summary["states"], summary["greedy"]) == (5, {"finished": 5}, 5)
    found = json.loads(firstfault(
        "triage", "replay", saved, "--base-url", sglang.url, "--symptom", "output", "--repeat", "2",
        "--bundle", tmp_path / "bundle", "--save", back, "--json", status=1,
    ))  # fmt: skip
    assert found["verdict"] == "REPRODUCED", found["conclusion"]
    assert (found["sent"], found["rounds"], found["alive"]) == (10, 2, True)
    assert (tmp_path / "bundle" / "metrics.txt").stat().st_size > 1000
    texts = [json.loads(line)["output"]["text"] for line in back.read_text().splitlines()[1:]]
    assert set(answers) <= set(texts)
    streamed = json.loads(firstfault(
        "triage", "replay", saved, "--base-url", sglang.url, "--symptom", "output", "--stream", "--ignore-eos", "--parallel", "2",
        "--json", status=1,
    ))  # fmt: skip
    assert streamed["times"]["ttft"]["now"]["count"] == 5


def test_a_planted_length_is_found_exactly(sglang: Server, tmp_path: Path) -> None:
    requests, least = tmp_path / "requests.jsonl", tmp_path / "least.jsonl"
    sampling = {"max_new_tokens": 2, "temperature": 0}
    bodies = [{"text": text, "sampling_params": sampling} for text in ("hello", LONG, "good day")]
    requests.write_text("".join(json.dumps({"path": "/generate", "body": body}) + "\n" for body in bodies))
    found = json.loads(firstfault(
        "triage", "replay", requests, "--base-url", sglang.url, "--threshold", str(SECONDS * 0.8), "--metric", "e2e",
        "--shrink", least, "--json", status=1,
    ))  # fmt: skip
    assert (found["shrunk"]["requests"], found["shrunk"]["of"]) == (1, 3)
    assert (found["shrunk"]["prompt"], found["shrunk"]["unit"], found["shrunk"]["monotone"]) == (SLOW, "tokens", True)
    [line] = least.read_text().splitlines()[1:]
    assert len(json.loads(line)["body"]["input_ids"]) == SLOW


def test_a_slow_prefill_is_seen_in_the_bundle_of_its_replay(sglang: Server, tmp_path: Path) -> None:
    requests, bundle = tmp_path / "requests.jsonl", tmp_path / "bundle"
    body = {"text": LONG, "stream": True, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    requests.write_text(json.dumps({"path": "/generate", "body": body}) + "\n")
    found = json.loads(firstfault(
        "triage", "replay", requests, "--base-url", sglang.url, "--threshold", str(SECONDS * 0.8), "--metric", "ttft",
        "--repeat", "8", "--bundle", bundle, "--json", status=1,
    ))  # fmt: skip
    assert found["times"]["ttft"]["now"]["least"] >= SECONDS
    summary = json.loads(firstfault("triage", "summarize", bundle, "--json", status=0))
    assert summary["contract"]["problem_class"] == "prefill-side latency", summary["contract"]


@contextlib.contextmanager
def proxied(server: Server, out: Path) -> Iterator[str]:
    """The URL of the proxy in front of a server."""
    url = f"http://127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "firstfault", "triage", "proxy", "--upstream", server.url, "--out", str(out)]
    with subprocess.Popen([*words, "--port", url.rpartition(":")[2]], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert url in process.stderr.readline()
        yield url
        process.terminate()
        told = process.stderr.read()
        assert "were saved" in told, told
        assert process.wait(60) == 0


def completion(prompt: str, *, stream: bool = False) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": stream}


def seconds(url: str) -> float:
    began = time.monotonic()
    urllib.request.urlopen(f"{url}/v1/models", timeout=30).read()
    return time.monotonic() - began


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_proxy_records_what_can_be_replayed(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    out = tmp_path / "requests.jsonl"
    with contextlib.ExitStack() as stack:
        if engine == "sglang":
            server: Server = request.getfixturevalue("sglang")
        else:
            server = stack.enter_context(serving("vllm", tmp_path / "server.log"))
        url = stack.enter_context(proxied(server, out))
        plain = [ask(url, "/v1/completions", completion(prompt)) for prompt in PROMPTS]
        streams = [ask(url, "/v1/completions", completion(prompt, stream=True)) for prompt in PROMPTS]
        assert all(b'"text"' in answer for answer in plain)
        assert all(answer.count(b"data: ") >= 3 and answer.rstrip().endswith(b"[DONE]") for answer in streams)
        direct, through = ([seconds(one) for _ in range(PROXIED)] for one in (server.url, url))
        added = statistics.median(through) - statistics.median(direct)
        print(f"{engine}: the proxy adds {added * 1000:.2f} ms to the median of {PROXIED}")
        assert added < 0.02
        found = json.loads(firstfault(
            "triage", "replay", out, "--base-url", server.url, "--symptom", "output", "--speed", "inf", "--parallel", "1", "--json",
            status=1,
        ))  # fmt: skip
    assert found["verdict"] == "REPRODUCED", found["conclusion"]
    assert found["sent"] == 2 * len(PROMPTS)


def test_a_crash_goes_the_whole_way(sglang: Server, tmp_path: Path) -> None:
    """Last, as it kills the server."""
    crashes, requests = tmp_path / "crashes", tmp_path / "requests.jsonl"
    ask(sglang.url, "/configure_logging", {"crash_dump_folder": str(crashes)})
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        ask(sglang.url, "/generate", {"text": LONG * 6, "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
    dumps: list[Path] = []
    for _ in range(100):
        if dumps := list(crashes.rglob("crash_dump_*.pkl")):
            break
        time.sleep(0.2)
    time.sleep(1)  # it is written by a process that goes on meanwhile
    summary = json.loads(
        firstfault("triage", "requests", *dumps, "--state", "unfinished", "--export", requests, "--json")
    )
    assert summary["states"] == {"unfinished": 1}
    assert "admin_api_key" not in requests.read_text()

    port = free_port()
    found = json.loads(firstfault(
        "triage", "run", sglang.url, "--launch", launch_line("sglang", port, PLANTED), "--target", f"http://127.0.0.1:{port}",
        "--request", requests, "--out", tmp_path / "incident", "--json", status=1, timeout=500,
    ))  # fmt: skip
    assert found["replay"]["verdict"] == "REPRODUCED", found["replay"]["conclusion"]
    assert not found["replay"]["alive"]
    assert found["summary"] is not None
    assert found["next"]["steps"]
    assert {"before", "during", "requests.jsonl", "replayed.jsonl", "server.log"} <= {
        path.name for path in (tmp_path / "incident").iterdir()
    }
    with socket.socket() as asking:
        assert asking.connect_ex(("127.0.0.1", port)) != 0, "the server that was started is left"


def test_a_harness_tells_a_good_commit_from_a_bad_one(tmp_path: Path) -> None:
    requests, script = tmp_path / "requests.jsonl", tmp_path / "harness.sh"
    body = {"text": LONG * 6, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    requests.write_text(json.dumps({"path": "/generate", "body": body, "state": "unfinished"}) + "\n")
    port = free_port()
    line = f". ./planted.env; {launch_line('sglang', port, {'PYTHONPATH': PLANTED['PYTHONPATH']})}"
    firstfault(
        "triage", "replay", requests, "--base-url", f"http://127.0.0.1:{port}", "--launch", line, "--harness", script
    )
    for commit, status in (("good", 0), ("bad", 1)):
        checkout = tmp_path / commit
        checkout.mkdir()
        planted = f"export PLANTED_CRASH_TOKENS={CRASH}\n" if commit == "bad" else ""
        (checkout / "planted.env").write_text(planted)
        done = subprocess.run(
            [shlex.quote(str(script))], cwd=checkout, capture_output=True, text=True, timeout=500, shell=True
        )
        assert done.returncode == status, done.stdout + done.stderr
