"""Requests queue up.

## What it finds
Requests that wait at the time of the snapshot, more of them at the end of the window than at its beginning, or a time
in the queue that is a large part of the time to the first token.

## Why it matters
Then more arrive than are served. What limits it is in the other signals: the cache, slots for running requests, or
the speed of prefill and decode.

## Evidence
Waiting at each sample, slots taken, arrivals and completions, average time in the queue.

## Next step
Find the limit: slots (--max-running-requests), the cache, or compute; add replicas if all of them are used.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

LONG = 0.2
"""Seconds in the queue that a user notices."""
SHARE = 0.5
"""Of the time to the first token."""


def check(scene: Scene) -> Iterator[Signal]:
    """Look at what waits, and how that changes."""
    if scene.frozen:
        return
    waited = [moment.sum("waiting") or 0.0 for moment in scene.moments]
    queue, ttft = scene.mean(names.QUEUE), scene.mean(names.TTFT)
    long = queue is not None and queue >= LONG and (ttft is None or queue >= SHARE * ttft)
    if not waited or not waited[-1]:
        if long and not scene.idle:
            yield _signal(
                scene, Confidence.MEDIUM, f"Requests waited {shown(queue)} s on average in the queue.", waited
            )
        return
    growing = len(waited) > 1 and waited[-1] > waited[0]
    text = f"Point-in-time load shows queue buildup: waiting_reqs={whole(waited[-1])}."
    yield _signal(scene, Confidence.HIGH if growing or long else Confidence.MEDIUM, text, waited)


def _signal(scene: Scene, confidence: Confidence, text: str, waited: list[float]) -> Signal:
    running, slots = scene.last.sum("running"), scene.most_running
    every = slots * max(scene.last.groups, 1) if slots else None
    full = bool(every and running is not None and running >= every)
    return signal(
        __name__,
        Problem.QUEUEING,
        confidence,
        text,
        guess=_guess(scene, every, full),
        evidence=[
            f"waiting over the window: {' → '.join(map(whole, waited[:20]))}",
            f"running={whole(running)} of {whole(every)}, avg_queue_s={shown(scene.mean(names.QUEUE))}, "
            f"avg_ttft_s={shown(scene.mean(names.TTFT))}, finished/s={shown(scene.rate(names.REQUESTS))}",
        ],
        rules_out=["prefill as the only reason: requests wait before it"],
        settles="raise the limit that is reached, and compare",
    )


def _guess(scene: Scene, slots: float | None, full: bool) -> str:
    """What holds requests back, as far as a bundle tells."""
    if full:
        return f"all {whole(slots)} slots for running requests are taken"
    return "more requests arrive than are served; what limits it is not the number of slots"
