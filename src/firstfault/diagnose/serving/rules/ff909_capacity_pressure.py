"""The KV cache is full: token-capacity pressure.

## What it finds
A cache that is nearly full on some rank while requests wait; or requests that wait with slots free and room in the
cache, because SGLang's admission reserves for what running requests may still generate.

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
LONG = 0.2
"""Seconds in the queue that a user notices."""


def check(scene: Scene) -> Iterator[Signal]:
    """Look at the fullest rank over the window, and at what is reserved of it."""
    if scene.frozen:
        return
    usage = max((moment.most("token_usage") or 0.0 for moment in scene.moments), default=0.0)
    waiting = max((moment.sum("waiting") or 0.0 for moment in scene.moments), default=0.0)
    if usage >= NEARLY_FULL or (usage >= FILLING and waiting):
        yield _signal(
            scene,
            Confidence.HIGH if waiting else Confidence.MEDIUM,
            "Token usage is near saturation. KV or token-capacity pressure may explain latency.",
            "the KV cache is too small for what runs at once"
            if waiting
            else "the KV cache is nearly full; the next requests will wait",
        )
    elif _reserved(scene):
        queue = scene.mean(names.QUEUE)
        yield _signal(
            scene,
            Confidence.HIGH if len(scene.moments) > 1 and queue is not None and queue >= LONG else Confidence.MEDIUM,
            f"Requests wait though slots are free and token_usage={shown(usage)}: the rest of the cache is reserved.",
            "admission reserves room for what running requests may still generate (new_token_ratio="
            f"{shown(scene.metrics.total('sglang:new_token_ratio'))} of their max_new_tokens): the cache is too small "
            "for more of them",
        )


def _reserved(scene: Scene) -> bool:
    """Whether requests that would fit wait at every sample, with slots free: SGLang counts in what may still come."""
    if scene.metrics.total("sglang:new_token_ratio") is None or scene.most_running is None or not scene.moments:
        return False
    slots = scene.most_running * scene.last.groups
    held = all((one.sum("waiting") or 0.0) > 0 and (one.sum("running") or 0.0) < slots for one in scene.moments)
    tokens, waiting, usage = scene.last.sum("waiting_tokens"), scene.last.sum("waiting"), scene.last.most("token_usage")
    if not held or not waiting or tokens is None or usage is None or scene.capacity is None:
        return False
    return tokens / waiting <= scene.capacity * (1 - usage)


def _signal(scene: Scene, confidence: Confidence, text: str, guess: str) -> Signal:
    usage, waiting = scene.last.most("token_usage"), scene.last.sum("waiting")
    return signal(
        __name__,
        Problem.CAPACITY,
        confidence,
        text,
        guess=guess,
        evidence=[
            f"token_usage={shown(usage)} of {whole(scene.capacity)} tokens, "
            f"running={whole(scene.last.sum('running'))}, waiting={whole(waiting)}, "
            f"avg_queue_s={shown(scene.mean(names.QUEUE))}",
            *(f"{rank.name}: token_usage={shown(rank.token_usage)}" for rank in scene.last.ranks[:16]),
        ],
        rules_out=["a slow kernel as the only reason: requests wait for room"],
        settles="take a bundle with a larger cache, or with fewer requests at once",
    )
