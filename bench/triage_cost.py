"""What a bundle costs a loaded server: latency of its requests and CPU time of its processes, with and without.

python -m bench.triage_cost [BLOCKS]

One real SGLang server on the CPU, four clients that ask one request after the other, and blocks of ten seconds in turn:
in every second one a bundle of two samples is taken. Each block with a bundle is compared with the mean of its two
neighbours, so that a drift of the machine cancels. Writes ``results/triage_cost.md``.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil

from firstfault.read.formats.prometheus_text import parse
from firstfault.serving.client import Client
from firstfault.serving.collect import Plan, collect
from tests.e2e.engines import Server, serving

RESULTS = Path(__file__).parent / "results" / "triage_cost.md"
BLOCK_SECONDS = 10.0
CLIENTS = 4
TOKENS = 64
BLOCKS = 25
PLAN = Plan(samples=2, interval=5.0)
GOAL = 0.01
BUNDLES = 8
STAGES = ("process_input_requests", "get_next_batch_to_run", "process_queue", "run_batch", "process_batch_result")
"""Of the scheduler's loop, those that work and do not wait."""


class Clients:
    """Clients that ask without a pause; ``taken`` has when each request ended and how long it took."""

    def __init__(self, server: Server) -> None:
        self.taken: list[tuple[float, float]] = []
        self._server = server
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(index,), daemon=True) for index in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, index: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            began = time.monotonic()
            self._server.generate(f"client {index} turn {turn} hello world", TOKENS)
            self.taken.append((time.monotonic(), time.monotonic() - began))

    def stop(self) -> None:
        """Let them end."""
        self._over.set()
        for thread in self._threads:
            thread.join(30)


def main() -> None:
    """Measure, and write the page."""
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else BLOCKS
    with tempfile.TemporaryDirectory() as folder:
        options = ("--enable-metrics", "--max-running-requests", str(CLIENTS))
        with serving("sglang", Path(folder) / "server.log", options=options) as server:
            clients = Clients(server)
            time.sleep(5.0)
            measured = [_block(server, clients, Path(folder) / f"b{index}", index % 2 == 1) for index in range(blocks)]
            clients.stop()
            own = _own(server, Path(folder))
    text = page(measured, *own)
    RESULTS.write_text(text)
    print(text)


def _block(server: Server, clients: Clients, folder: Path, bundle: bool) -> tuple[float, float, int]:
    """Mean latency, CPU seconds of the server for each request, and requests of one block."""
    began, cpu = time.monotonic(), _cpu(server)
    if bundle:
        collect(Client(server.url), folder, PLAN)
    time.sleep(max(0.0, began + BLOCK_SECONDS - time.monotonic()))
    ended = time.monotonic()
    taken = [seconds for at, seconds in list(clients.taken) if began <= at < ended]
    return statistics.fmean(taken), (_cpu(server) - cpu) / len(taken), len(taken)


def _cpu(server: Server) -> float:
    process = psutil.Process(server.process.pid)
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


def _own(server: Server, folder: Path) -> tuple[float, float]:
    """Seconds that one bundle takes of the HTTP front's CPU, and of the scheduler's loop, on a server that idles.

    The scheduler's are what delays other requests where the front has a core of its own; it counts them by itself.
    """
    began, front, loop = time.monotonic(), _front(server), _scheduler(server)
    for index in range(BUNDLES):
        collect(Client(server.url), folder / f"own{index}", Plan(samples=2, interval=0.5))
    seconds, front, loop = time.monotonic() - began, _front(server) - front, _scheduler(server) - loop
    idle_front, idle_loop = _front(server), _scheduler(server)  # an idle loop turns, and counts its turns
    time.sleep(seconds)
    idle_front, idle_loop = _front(server) - idle_front, _scheduler(server) - idle_loop
    return (front - idle_front) / BUNDLES, (loop - idle_loop) / BUNDLES


def _front(server: Server) -> float:
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def _scheduler(server: Server) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        metrics = parse(answer.read().decode().split("\n"))
    stages = (metrics.total("sglang:scheduler_stage_seconds_total", category=stage) or 0.0 for stage in STAGES)
    return sum(stages)


def page(measured: list[tuple[float, float, int]], front: float, scheduler: float) -> str:
    """The result as Markdown."""
    latency, cpu = _added(measured, 0), _added(measured, 1)
    requests = sum(block[2] for block in measured)
    rows = [
        _row("latency of a request", latency, statistics.fmean(block[0] for block in measured), "s"),
        _row("CPU time of the server for each request", cpu, statistics.fmean(block[1] for block in measured), "s"),
    ]
    return "\n".join(
        [
            "# What a bundle costs a loaded server",
            "",
            f"`python -m bench.triage_cost {len(measured)}`: {len(measured)} blocks of {BLOCK_SECONDS:.0f} s, "
            f"{len(measured) // 2} of them with a bundle of two samples, {requests} requests, {CLIENTS} clients.",
            f"The goal is {GOAL:.0%} of latency at most.",
            "",
            "| | mean | added in the ten seconds of a bundle | 95 % interval |",
            "|---|---|---|---|",
            *rows,
            "",
            f"One bundle by itself takes {front * 1000:.0f} ms of the HTTP front's CPU, two reads of `/metrics` as",
            f"Prometheus makes them, and {scheduler * 1000:.1f} ms of the scheduler's loop (health checks' too):",
            f"{scheduler / PLAN.interval:.2%} of the {PLAN.interval:.0f} s that it is taken over.",
            f"The load average was {os.getloadavg()[2]:.0f} on {os.cpu_count()} cores, where the collector ran too.",
            "",
        ]
    )


def _added(measured: list[tuple[float, float, int]], which: int) -> list[float]:
    """Of each block with a bundle, how much more than the mean of its neighbours."""
    found = []
    for index in range(1, len(measured) - 1, 2):
        beside = (measured[index - 1][which] + measured[index + 1][which]) / 2
        found.append(measured[index][which] / beside - 1)
    return found


def _row(name: str, added: list[float], mean: float, unit: str) -> str:
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(added, k=len(added))) for _ in range(4000))
    low, high = means[100], means[-101]
    return f"| {name} | {mean:.3f} {unit} | {statistics.fmean(added):+.2%} | {low:+.2%} … {high:+.2%} |"


if __name__ == "__main__":
    main()
