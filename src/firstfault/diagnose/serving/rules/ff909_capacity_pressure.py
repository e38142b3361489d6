"""The KV cache is full: token-capacity pressure.

## What it finds
A cache that is nearly full on some rank while requests wait.

## Why it matters
Requests then wait for others to finish, whatever the GPU could do: latency follows from the size of the cache, not from
the speed of kernels.

## Evidence
Usage on each rank, what waits, time in the queue.

## Next step
Raise --mem-fraction-static or the number of replicas, shorten what is kept, or move the cache to fp8.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

NEARLY_FULL = 0.9
FILLING = 0.8


def check(scene: Scene) -> Iterator[Signal]:
    """Look at the fullest rank over the window."""
    if scene.frozen:
        return
    usage = max((moment.most("token_usage") or 0.0 for moment in scene.moments), default=0.0)
    waiting = max((moment.sum("waiting") or 0.0 for moment in scene.moments), default=0.0)
    queue = scene.mean(names.QUEUE)
    if usage >= NEARLY_FULL or (usage >= FILLING and waiting):
        yield signal(
            __name__,
            Problem.CAPACITY,
            Confidence.HIGH if waiting else Confidence.MEDIUM,
            "Token usage is near saturation. KV or token-capacity pressure may explain latency.",
            guess="the KV cache is too small for what runs at once"
            if waiting
            else "the KV cache is nearly full; the next requests will wait",
            evidence=[
                f"token_usage={shown(usage)} of {whole(scene.capacity)} tokens, waiting={whole(waiting)}, "
                f"avg_queue_s={shown(queue)}",
                *(f"{rank.name}: token_usage={shown(rank.token_usage)}" for rank in scene.last.ranks[:16]),
            ],
            rules_out=["a slow kernel as the only reason: requests wait for room"],
            settles="take a bundle with a larger cache, or with fewer requests at once",
        )
