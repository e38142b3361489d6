"""The time to the first token is high, and the queue is not why.

## What it finds
An average time to the first token that is long, with next to no time in the queue; and, where stages are told, a
prefill that takes most of it.

## Why it matters
More replicas or a larger cache change nothing. What is slow is the prefill's compute, or what the request passes on
its way to it (tokenising, images, grammar).

## Evidence
The averages over the window, and the stages.

## Next step
Save the slow request, replay it by itself, then profile the prefill.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

HIGH_TTFT = 2.0
LOW_QUEUE = 0.2
NOTICED = 0.5
"""Seconds of a stage, and times of what is normal, that are worth a look."""
TIMES = 10
SLOWER = 2.0


def check(scene: Scene) -> Iterator[Signal]:
    """Compare the time to the first token with its parts."""
    ttft, queue = scene.mean(names.TTFT), scene.mean(names.QUEUE)
    prefill, process = scene.stages.get("prefill_forward"), scene.stages.get("request_process")
    if ttft is None or (queue is not None and queue >= max(LOW_QUEUE, 0.2 * ttft)):
        return
    dominated = prefill is not None and prefill > max(NOTICED, (process or 0.0) * TIMES) and prefill >= 0.5 * ttft
    known = scene.baseline.mean(names.TTFT) if scene.baseline is not None else None
    slower = known is not None and ttft > max(SLOWER * known, NOTICED)
    if ttft <= HIGH_TTFT and not dominated and not slower:
        return
    yield signal(
        __name__,
        Problem.PREFILL,
        Confidence.HIGH if dominated else Confidence.MEDIUM,
        f"Average TTFT is high ({shown(ttft)}s) while average queue time is low ({shown(queue)}s). This looks more "
        "like prefill or request-path work than queue pressure.",
        guess="prefill-side compute" if dominated else "prefill-side compute, or the request path in front of it",
        evidence=_evidence(scene, prefill, process, known),
        rules_out=_ruled_out(scene, queue),
        settles="replay the slow request by itself, then profile its prefill",
    )


def _evidence(scene: Scene, prefill: float | None, process: float | None, known: float | None) -> list[str]:
    told = []
    if prefill is not None and prefill > max(NOTICED, (process or 0.0) * TIMES):
        told.append(
            f"Prefill forward dominates quick stage timing: prefill_forward~{shown(prefill)}s vs "
            f"request_process~{shown(process)}s."
        )
    if known is not None:
        told.append(f"the baseline's average TTFT was {shown(known)} s")
    length = scene.mean(names.PROMPT_LENGTH)
    return [*told, f"average prompt: {whole(length)} tokens"] if length is not None else told


def _ruled_out(scene: Scene, queue: float | None) -> list[str]:
    waiting, usage = scene.last.sum("waiting"), scene.last.most("token_usage")
    told = []
    if not waiting:
        told.append(f"queue pressure: waiting={whole(waiting)}, avg_queue_s={shown(queue)}")
    if usage is not None and usage < 0.8:
        told.append(f"KV-cache pressure: token_usage={shown(usage)}")
    return told
