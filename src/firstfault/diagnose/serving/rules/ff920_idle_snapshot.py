"""The bundle was taken while nothing happened.

## What it finds
No request ran or waited at any sample, and none finished in the window.

## Why it matters
An idle server explains no latency: averages are then of the whole life of the server, and say nothing about the
incident.

## Evidence
The load at each sample.

## Next step
Take the bundle again under traffic, let a watch take it when it happens, or replay a saved request.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal


def check(scene: Scene) -> Iterator[Signal]:
    """Look whether anything was under way."""
    if not scene.idle or scene.grown(names.REQUESTS) or scene.open_requests:
        return
    yield signal(
        __name__,
        Problem.IDLE,
        Confidence.LOW,
        "Bundle snapshot was captured while the server was effectively idle. Reproduce under live traffic or replayed "
        "workload if the problem is intermittent.",
        guess="the problem was not there while the bundle was taken",
        settles="take it again under traffic",
    )
