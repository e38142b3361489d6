"""Tokens come slowly once they come: decode dominates.

## What it finds
A time between tokens that is long, or that makes most of the end-to-end time, with a short time to the first token.

## Why it matters
The fault is then in the step that every running request shares: attention over long contexts, a batch without a CUDA
graph, all-reduce, or speculative decoding that rejects everything.

## Evidence
The time between tokens over the window, its percentiles, and what share of the end-to-end time decode has.

## Next step
Replay the same mix, then profile decode: kernel time, launch gaps, overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

SLOW_TOKEN = 0.2
"""Seconds between tokens; slower than people read."""
SLOWER = 2.0
SLOW_STEP = 0.05
SHARE = 0.6


def check(scene: Scene) -> Iterator[Signal]:
    """Look at the time between tokens."""
    latency = scene.latency(names.ITL) or scene.latency(names.TPOT)
    between = latency.best.mean if latency is not None else None
    ttft, queue, e2e = scene.mean(names.TTFT), scene.mean(names.QUEUE), scene.mean(names.E2E)
    if between is None or latency is None:
        return
    baseline = scene.baseline.mean(names.ITL) if scene.baseline is not None else None
    slower = baseline is not None and between > max(SLOWER * baseline, SLOW_STEP)
    if between < SLOW_TOKEN and not slower:
        return
    if e2e is not None and ttft is not None and e2e > 0 and (e2e - ttft) / e2e < SHARE:
        return
    p50, p99 = latency.best.quantile(0.5), latency.best.quantile(0.99)
    yield signal(
        __name__,
        Problem.DECODE,
        Confidence.HIGH if slower else Confidence.MEDIUM,
        f"Tokens come {shown(between)} s apart on average (p50 {shown(p50)} s, p99 {shown(p99)} s).",
        guess="the decode step is slow: batch, context length, graph, or collective",
        evidence=[f"avg_ttft_s={shown(ttft)} avg_e2e_s={shown(e2e)} avg_queue_s={shown(queue)}"]
        + ([f"the baseline's tokens came {shown(baseline)} s apart"] if baseline is not None else []),
        rules_out=["the queue and prefill: most of the time passes after the first token"],
        settles="profile decode steps under the same mix",
    )
