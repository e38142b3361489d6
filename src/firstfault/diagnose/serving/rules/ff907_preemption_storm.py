"""Requests are taken back again and again: a retraction or preemption storm.

## What it finds
Retractions (SGLang) or preemptions (vLLM) that grow in the window, against the requests that finish in it.

## Why it matters
Each one throws computed keys and values away, and its prompt is computed again: throughput falls while every gauge says
that the engine is busy.

## Evidence
Retractions and finished requests in the window, tokens that were computed again, how full the cache is.

## Next step
Admit less: raise --schedule-conservativeness, lower --max-running-requests, or reserve the full length at admission.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

FEW = 2
"""In a window; below that it is not a storm."""
LOG_LINES = 3


def check(scene: Scene) -> Iterator[Signal]:
    """Look at what was taken back in the window, else in the log."""
    grown, finished = scene.grown(names.PREEMPTIONS), scene.grown(names.REQUESTS)
    if grown is not None and grown >= FEW:
        share = grown / finished if finished else None
        yield signal(
            __name__,
            Problem.THRASHING,
            Confidence.HIGH if share is None or share >= 0.1 else Confidence.MEDIUM,
            f"{whole(grown)} requests were retracted or preempted in {shown(scene.seconds, 1)} s, while "
            f"{whole(finished)} finished.",
            guess="more requests were admitted than the cache can hold to their end, and prefill is repeated",
            evidence=_evidence(scene),
            rules_out=["a slow kernel: the same tokens are computed more than once"],
            settles="reserve for the full length at admission, and see whether it ends",
        )
    elif len(scene.logs.retractions) >= LOG_LINES:
        yield signal(
            __name__,
            Problem.THRASHING,
            Confidence.MEDIUM,
            f"The log tells {len(scene.logs.retractions)} times of requests taken back: {scene.logs.retractions[-1]}",
            guess="more requests were admitted than the cache can hold to their end",
            settles="take a bundle under load, for the retractions in a window",
        )


def _evidence(scene: Scene) -> list[str]:
    told = [f"token_usage={shown(scene.last.most('token_usage'))}"]
    again = scene.grown(names.RECOMPUTED)
    return [*told, f"prompt tokens computed again: {whole(again)}"] if again else told
