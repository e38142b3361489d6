"""The waiting is in the client.

## What it finds
A time to the first token that a client measured (--client-ttft, --client-e2e) and that is far above the server's own
over the same window, while nothing waits at the server.

## Why it matters
A client with a limit on its own concurrency, a pool of connections or a proxy lets requests wait before they are sent,
and counts that as the server's. No change of the server helps.

## Evidence
Both times, and the server's queue.

## Next step
Start the client's clock when the request is sent; send one request by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

TIMES = 3.0
NOTICED = 0.5
"""Seconds."""


def check(scene: Scene) -> Iterator[Signal]:
    """Compare what a client measured with what the server did."""
    for name, metric in (("ttft", names.TTFT), ("e2e", names.E2E)):
        told, served = scene.client.get(name), scene.mean(metric)
        if told is None or served is None or told < max(TIMES * served, served + NOTICED):
            continue
        waiting = max((moment.sum("waiting") or 0.0 for moment in scene.moments), default=0.0)
        latency = scene.latency(metric)
        p99 = latency.best.quantile(0.99) if latency is not None else None
        if p99 is not None and told < p99:
            continue
        yield signal(
            __name__,
            Problem.CLIENT,
            Confidence.HIGH if not waiting else Confidence.MEDIUM,
            f"The client measured {name}={shown(told)} s, the server {shown(served)} s (p99 {shown(p99)} s).",
            guess="requests wait before they reach the server: the client's own concurrency limit, a pool, or a proxy",
            evidence=[f"waiting={whole(waiting)} avg_queue_s={shown(scene.mean(names.QUEUE))} at the server"],
            rules_out=["the server: what it received it answered in time"],
            settles="start the client's clock when the request is sent",
        )
        return
