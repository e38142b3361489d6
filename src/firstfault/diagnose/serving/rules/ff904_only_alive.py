"""Liveness is green, and generation fails.

## What it finds
/health answers well and /health_generate does not; or the front is ready while generation times out.

## Why it matters
Load balancers look at /health. A server in this state keeps getting requests that it cannot serve.

## Evidence
How both checks came back.

## Next step
Send one small request by itself, and look at the scheduler: its stack, and the end of its log.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.record import bundle


def check(scene: Scene) -> Iterator[Signal]:
    """Compare the two health checks."""
    generate = scene.result(bundle.HEALTH_GENERATE)
    if scene.bundle.ok(bundle.HEALTH) is not True or generate is None or generate.ok or generate.missing:
        return
    if generate.status in (401, 403):
        return
    yield signal(
        __name__,
        Problem.HANG,
        Confidence.HIGH,
        "/health is green but /health_generate failed. Suspect runtime or scheduler path, not just HTTP liveness.",
        guess="the scheduler or a worker does not complete even one token",
        evidence=[f"/health_generate: {generate.error or generate.status}"],
        rules_out=["the HTTP front: it answers"],
        settles="look where the scheduler is",
    )
