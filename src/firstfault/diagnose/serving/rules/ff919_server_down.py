"""Nothing answers.

## What it finds
A server of which no endpoint was answered: connections are refused, reset, or nothing comes back; or /health fails and
nothing tells why.

## Why it matters
What is wrong can then only be learnt from what it left: its log, its crash dump, its core.

## Evidence
How each endpoint failed.

## Next step
Take the bundle again on the server's machine with --local and --log.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.record import bundle


def check(scene: Scene) -> Iterator[Signal]:
    """Look whether anything was answered."""
    results = scene.bundle.results.values()
    if not results:
        return
    if not scene.alive:
        failures = sorted({result.failure or "no answer" for result in results})
        hung = "TimeoutError" in failures  # what hung first may be reset and refused when it is taken down
        yield signal(
            __name__,
            Problem.HANG if hung else Problem.DOWN,
            Confidence.MEDIUM,
            f"Nothing was answered: {', '.join(failures)}.",
            guess="the server hangs, its HTTP front included"
            if hung
            else "there is no server at this address any more",
            evidence=[f"{result.path}: {result.error}" for result in results][:8],
            settles="look at the log and the crash dump folder on the server's machine",
        )
    elif scene.bundle.ok(bundle.HEALTH) is False:
        health = scene.result(bundle.HEALTH)
        yield signal(
            __name__,
            Problem.DOWN,
            Confidence.LOW,
            "/health failed. Start with startup, crash, or global unhealthy paths.",
            guess="the server starts, shuts down, or its scheduler does not answer",
            evidence=[f"/health: {health.error or health.status}"] if health is not None else [],
            settles="ask again in a minute, and look at the log",
        )
