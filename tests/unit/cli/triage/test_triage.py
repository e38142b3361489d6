"""``firstfault triage …`` as it is typed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firstfault.cli import app
from firstfault.diagnose.serving.handover import path
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem
from firstfault.errors import FirstFaultError
from firstfault.read.bundle import read
from tests import triage_cases, triage_signals
from tests.unit.serving.servers import serving
from tests.unit.test_docs import problem


def typed(*words: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["triage", *map(str, words)], env={"SGLANG_BEARER_TOKEN": ""})
    if isinstance(done.exception, FirstFaultError):
        raise done.exception
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    words = (await reader.readline()).split()
    while (await reader.readline()).strip():
        pass
    known: dict[bytes, Any] = {
        b"/health": b"",
        b"/health_generate": b"",
        b"/metrics": b'sglang:num_running_reqs{tp_rank="0"} 0\n',
        b"/model_info": b'{"model_path": "m"}',
        b"/server_info": b'{"tp_size": 1}',
        b"/v1/loads?include=all": b'{"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0}]}',
        b"/v1/loads?include=core,queues,disagg,spec": b'{"loads": []}',
    }
    body = known.get(words[1])
    status = b"404 Not Found" if body is None else b"200 OK"
    writer.write(
        b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body or b""), body or b"")
    )
    await writer.drain()


def test_a_bundle_is_taken_and_summarised(tmp_path: Path) -> None:
    with serving(answers) as url:
        told = typed("collect", "--base-url", url, "--out", tmp_path / "b", "--interval", "0.1", "--local")
    assert told.strip().endswith(str(tmp_path / "b"))
    assert (tmp_path / "b/local/processes.json").exists()
    told = typed("summarize", tmp_path / "b")
    assert "Health: /health=ok /health_generate=ok" in told
    assert "Problem class: idle snapshot" in told
    assert f"Next step: firstfault triage watch {url}" in told


def test_an_incomplete_bundle_exits_with_3(tmp_path: Path) -> None:
    told = typed("collect", "--base-url", "http://127.0.0.1:9", "--out", tmp_path / "b", status=3)
    assert str(tmp_path / "b") in told
    assert "Problem class: server down" in typed("summarize", tmp_path / "b", status=3)


def test_a_bundle_is_told_to_machines(tmp_path: Path) -> None:
    told = json.loads(
        typed("collect", "--base-url", "http://127.0.0.1:9", "--out", tmp_path / "b", "--json", status=3).split("\n")[
            -2
        ]
    )
    assert told["version"] == 1
    assert told["folder"] == str(tmp_path / "b")
    assert told["problems"]


def test_a_log_is_added_by_name(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(
        "[2026-01-01 10:00:00] Subprocess scheduler_0 (pid=1) crashed with exit code -11.\n"
    )
    typed(
        "collect",
        "--base-url",
        "http://127.0.0.1:9",
        "--out",
        tmp_path / "b",
        "--log",
        tmp_path / "server.log",
        status=3,
    )
    assert "exited with -11" in typed("summarize", tmp_path / "b", status=3)


def test_formats_and_files(tmp_path: Path) -> None:
    bundle = triage_cases.ttft(tmp_path / "b").folder
    assert json.loads(typed("summarize", bundle, "--json"))["contract"]["problem_class"] == "prefill-side latency"
    typed("summarize", bundle, "--format", "md", "-o", tmp_path / "out.md")
    assert (tmp_path / "out.md").read_text().startswith("**Prefill")
    with pytest.raises(FirstFaultError, match="do not go together"):
        typed("summarize", bundle, "--json", "--format", "md")
    with pytest.raises(FirstFaultError, match="no such bundle"):
        typed("summarize", tmp_path / "nowhere")


def test_diff_says_by_its_status_whether_something_changed(tmp_path: Path) -> None:
    good = triage_signals.before_drift(tmp_path / "good").folder
    bad = triage_signals.drifted(tmp_path / "bad").folder
    assert "attention_backend: fa3 → triton" in typed("diff", good, bad, status=1)
    assert "Nothing changed" in typed("diff", good, good)
    typed("diff", triage_signals.gone(tmp_path / "gone").folder, bad, status=3)


def test_next_takes_a_baseline_and_commits(tmp_path: Path) -> None:
    bundle = triage_cases.ttft(tmp_path / "b").folder
    assert "Path: torch profiler" in typed("next", bundle)
    assert json.loads(typed("next", bundle, "--good", "a", "--bad", "b", "--json"))["tool"] == "bisect harness"
    with pytest.raises(FirstFaultError, match="go together"):
        typed("next", bundle, "--good", "a")


def test_a_watch_ends_with_its_time(tmp_path: Path) -> None:
    with serving(answers) as url:
        typed("watch", url, "--every", "0.2", "--for", "0.5", "--ring", tmp_path / "ring", "--out", tmp_path / "b")
    assert (tmp_path / "ring").read_text().count("\n") >= 2
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("problem_class", list(Problem))
@pytest.mark.parametrize("make", [triage_signals.healthy, triage_cases.client_gate, triage_cases.killed_scheduler])
def test_every_command_that_is_handed_over_is_one(problem_class: Problem, make: Any, tmp_path: Path) -> None:
    scene = Scene(read(make(tmp_path).folder), "bundle")
    ways = [path(scene, problem_class), path(scene, problem_class, good="a", bad="b")]
    typed_lines = [step.command for way in ways for step in way.steps if step.command.startswith("firstfault ")]
    assert {line: why for line in typed_lines if (why := problem(line.removeprefix("firstfault "))) is not None} == {}
