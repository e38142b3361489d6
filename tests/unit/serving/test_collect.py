"""A bundle is whole or says what is missing, holds no secret, and is taken in a bounded time."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from firstfault.errors import UsageError
from firstfault.read.bundle import read
from firstfault.serving.client import Client
from firstfault.serving.collect import Collected, Plan, collect
from tests.unit.serving.servers import Handler, serving
from tests.unit.serving.test_redaction import SECRET, SERVER_INFO, planted

URL = "http://server:30000"
METRICS = 'sglang:num_running_reqs{tp_rank="0"} 3\nsglang:num_requests_total{tp_rank="0"} %d\n'
ONCE = Plan(samples=1)


class Fake:
    """A healthy server; what it is told otherwise of a path it does."""

    def __init__(self, **answers: httpx.Response | Exception) -> None:
        self.asked: Counter[str] = Counter()
        self.tokens: set[str | None] = set()
        self.answers = answers

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked[path] += 1
        self.tokens.add(request.headers.get("authorization"))
        known: dict[str, httpx.Response | Exception] = {
            "/health": httpx.Response(200),
            "/health_generate": httpx.Response(200),
            "/metrics": httpx.Response(200, text=METRICS % self.asked[path]),
            "/model_info": httpx.Response(200, json={"model_path": "m"}),
            "/get_server_info": httpx.Response(200, json=planted(SERVER_INFO)),
            "/v1/loads": httpx.Response(200, json={"loads": [{"dp_rank": 0, "num_running_reqs": 3}]}),
            "/hicache/storage-backend": httpx.Response(401, json={"error": "Unauthorized"}),
        }
        answer = (known | self.answers).get(path, httpx.Response(404, json={"detail": "Not Found"}))
        if isinstance(answer, Exception):
            raise answer
        return answer


def taken(folder: Path, fake: Fake, plan: Plan = ONCE, token: str = "", **chosen: Any) -> Collected:
    client = Client(URL, token=token, transport=httpx.MockTransport(fake), **chosen)
    return collect(client, folder, plan, token)


def test_a_bundle_has_the_files_of_the_method(tmp_path: Path) -> None:
    done = taken(tmp_path / "b", Fake(), Plan(samples=2, interval=0.1))
    assert done.problems == []
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        "metadata.json", "SUMMARY.txt", "health.txt", "health_generate.txt", "metrics.txt", "model_info.json",
        "server_info.json", "loads_all.json", "loads_core_queues_disagg.json", "hicache_storage_backend.json", "samples",
    }  # fmt: skip
    found = read(tmp_path / "b")
    assert [sample.metrics.total("sglang:num_requests_total") for sample in found.samples] == [1.0, 2.0]
    assert found.server["tp_size"] == 8
    assert found.results["hicache_storage_backend.json"].status == 401


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        taken(tmp_path / "b", Fake(), Plan(samples=2, interval=0.1))
    finally:
        os.umask(old)
    for path in [tmp_path / "b", *(tmp_path / "b").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_no_secret_is_in_it(tmp_path: Path) -> None:
    leaky = f'sglang:x{{customer="{SECRET}",model_name="{SECRET}"}} 1\n# HELP sglang:x {SECRET}\n{SECRET} 1\n'
    fake = Fake(
        **{
            "/health": httpx.Response(500, text=f"boom {SECRET}", headers={"x-key": SECRET, "server": SECRET}),
            "/health_generate": httpx.Response(200, text=SECRET),
            "/metrics": httpx.Response(200, text=leaky),
            "/model_info": httpx.Response(200, json=planted({"model_path": f"http://user:{SECRET}@hub/m"})),
            "/v1/loads": httpx.Response(200, json=planted({"loads": [planted({"num_running_reqs": 1})]})),
            "/v1/models": httpx.Response(200, json=planted({"data": [{"id": "m"}]})),
            "/hicache/storage-backend": httpx.Response(400, json={"error": SECRET, SECRET: SECRET}),
        }
    )
    taken(tmp_path / "b", fake, token=SECRET)
    for path in (tmp_path / "b").rglob("*"):
        assert SECRET not in path.name
        if path.is_file():
            assert SECRET not in path.read_text(), path
    assert fake.tokens == {f"Bearer {SECRET}"}


def test_each_failure_is_kept_as_it_came(tmp_path: Path) -> None:
    answers: dict[str, httpx.Response | Exception] = {
        "/health": httpx.ConnectTimeout("timed out"),
        "/v1/loads": httpx.ReadError("[Errno 104] Connection reset by peer"),
        "/metrics": httpx.Response(503, text="starting"),
    }
    fake = Fake(**answers)
    done = taken(tmp_path / "b", fake)
    told = json.loads((tmp_path / "b/health.txt.error.json").read_text())
    assert (told["ok"], told["status"], told["path"], told["error"]) == (
        False,
        -1,
        "/health",
        "TimeoutError: timed out",
    )
    loads = json.loads((tmp_path / "b/loads_all.json").read_text())
    assert loads["error"].startswith("ConnectionResetError: ")
    metrics = json.loads((tmp_path / "b/metrics.txt.error.json").read_text())
    assert (metrics["status"], metrics["error"]) == (503, "starting")
    assert [problem.partition(":")[0] for problem in done.problems] == ["/health", "/v1/loads?include=all", ANY_LOADS]
    assert json.loads((tmp_path / "b/metadata.json").read_text())["complete"] is False


ANY_LOADS = "/v1/loads?include=core,queues,disagg,spec"


def test_a_passive_bundle_makes_nothing_generate(tmp_path: Path) -> None:
    fake = Fake()
    taken(tmp_path / "b", fake, Plan(samples=2, interval=0.1, passive=True))
    assert not fake.asked["/health"]
    assert not fake.asked["/health_generate"]
    assert read(tmp_path / "b").ok("health.txt") is None


def test_later_samples_make_nothing_generate_either(tmp_path: Path) -> None:
    fake = Fake()
    taken(tmp_path / "b", fake, Plan(samples=4, interval=0.05))
    assert fake.asked["/health"] == fake.asked["/health_generate"] == 1
    assert fake.asked["/metrics"] == 4


def test_a_missing_key_is_told(tmp_path: Path) -> None:
    done = taken(tmp_path / "b", Fake(**{"/get_server_info": httpx.Response(401, json={"error": "Unauthorized"})}))
    assert done.problems == ["/get_server_info: status 401; give the server's key with --token"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="not empty"):
        taken(tmp_path, Fake())


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("handler", [hangs, drips])
@pytest.mark.parametrize(("samples", "interval"), [(2, 0.6), (40, 0.2), (9, 30.0)])
def test_a_server_that_hangs_costs_at_most_twice_the_timeout(
    tmp_path: Path, handler: Handler, samples: int, interval: float
) -> None:
    timeout = 1.0
    with serving(handler) as url:
        began = time.monotonic()
        done = collect(Client(url, timeout=timeout), tmp_path / "b", Plan(samples, interval))
        seconds = time.monotonic() - began
    starts = [one["at"] for one in json.loads((tmp_path / "b/metadata.json").read_text())["samples"]]
    # Each sample ends a timeout after its start; a machine under load is late with both, but begins no further one.
    assert starts[-1] - starts[0] <= timeout + 0.5
    assert seconds < 20.0
    assert done.problems
    assert json.loads((tmp_path / "b/health.txt.error.json").read_text())["error"] == "TimeoutError: timed out"


async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    path = (await reader.readline()).split()[1]
    line = b'sglang:num_running_reqs{tp_rank="0"} 3\n' * 2000
    bomb = gzip.compress(bytes(64 * 2**20)) if path == b"/model_info" else b""
    head = b"HTTP/1.1 200 OK\r\n" + (b"content-encoding: gzip\r\n" if bomb else b"") + b"\r\n"
    writer.write(head + bomb)
    if path == b"/health":
        writer.write(b"\xff\xfe not utf-8 \x1b[2J")
    elif path == b"/metrics":
        for _ in range(200 * 2**20 // len(line)):
            writer.write(line)
            await writer.drain()
    elif not bomb:
        while True:  # without end
            writer.write(bytes(65536))
            await writer.drain()


def test_endless_bodies_and_bombs_are_bounded(tmp_path: Path) -> None:
    with serving(floods) as url:
        done = collect(Client(url, timeout=120.0, most_bytes=4 * 2**20), tmp_path / "b", ONCE)
    told = {problem.partition(": ")[0]: problem for problem in done.problems}
    assert "BodyTooLarge" in told["/metrics"]
    assert "BodyTooLarge" in told["/model_info"]
    assert "BodyTooLarge" in told["/server_info"]
    assert sum(path.stat().st_size for path in (tmp_path / "b").rglob("*")) < 2**20
    assert "\\xff\\xfe not utf-8" in (tmp_path / "b/health.txt").read_text()
    assert read(tmp_path / "b").problems
