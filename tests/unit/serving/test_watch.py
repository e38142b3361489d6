"""A watch reads passively, keeps a ring, and ends when something fires."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import httpx

from firstfault.diagnose.serving.trigger import Trigger
from firstfault.read.bundle import sample_of
from firstfault.serving.client import Client
from firstfault.serving.redaction import Redaction
from firstfault.serving.ring import Reading, Ring
from firstfault.serving.watch import watch


class Engine:
    """A server that works for some readings and then stands still."""

    def __init__(self, works: int) -> None:
        self.works = works
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path == "/metrics":
            steps = min(self.asked.count("/metrics"), self.works)
            text = f'sglang:realtime_tokens_total{{mode="decode"}} {100 * steps}\nsglang:num_running_reqs 3\n'
            return httpx.Response(200, text=text + 'sglang:http_requests_active{endpoint="/generate"} 3\n')
        load = {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 0, "token_usage": 0.1, "timestamp": 1.0}
        return httpx.Response(200, json={"loads": [load]})


def test_a_stall_fires_and_what_led_to_it_is_kept(tmp_path: Path) -> None:
    engine = Engine(works=3)
    client = Client("http://x", transport=httpx.MockTransport(engine))
    trigger, ring = Trigger(), Ring(tmp_path / "ring", 2**16)
    times = iter(range(100))

    def judge(reading: Reading) -> str:
        return trigger.judge(sample_of(5.0 * next(times), reading.metrics, reading.loads))

    fired = watch(client, ring, judge, every=0.01, seconds=60.0, redaction=Redaction())
    assert fired == "FF903"
    assert set(engine.asked) == {"/metrics", "/v1/loads"}
    assert len(list(ring.readings())) == next(times)


def test_a_working_server_fires_nothing(tmp_path: Path) -> None:
    client = Client("http://x", transport=httpx.MockTransport(Engine(works=1000)))
    trigger, times = Trigger(), iter(range(1000))
    fired = watch(
        client,
        Ring(tmp_path / "ring", 2**16),
        lambda reading: trigger.judge(sample_of(5.0 * next(times), reading.metrics, reading.loads)),
        every=0.01,
        seconds=0.2,
        redaction=Redaction(),
    )
    assert fired == ""


def test_readings_are_never_nearer_than_was_asked_for(tmp_path: Path) -> None:
    asked: list[float] = []

    def late_once(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            asked.append(time.monotonic())
            time.sleep(0.5 if len(asked) == 2 else 0.0)
        return httpx.Response(200, text="{}")

    client = Client("http://x", transport=httpx.MockTransport(late_once))
    ring = Ring(tmp_path / "ring", 2**16)
    watch(client, ring, lambda reading: "" if len(asked) < 6 else "any", every=0.2, seconds=60.0, redaction=Redaction())
    assert min(after - before for before, after in itertools.pairwise(asked)) >= 0.19


def test_a_server_that_goes_fires(tmp_path: Path) -> None:
    trigger = Trigger()
    there = sample_of(0.0, "sglang:num_running_reqs 0\n", None)
    gone = sample_of(None, "", None)
    assert [trigger.judge(one) for one in (gone, gone, gone, gone)] == [""] * 4
    assert [trigger.judge(one) for one in (there, gone, gone, gone)] == ["", "", "", "FF919"]
