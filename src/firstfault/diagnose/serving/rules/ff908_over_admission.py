"""Over-admission: prefill takes every step, and what runs hardly advances.

## What it finds
Prompts are computed at a high, flat rate with many requests waiting and running, while each running request gets next
to no tokens, and the cache fills from sample to sample.

## Why it matters
An admission that looks only at the first chunk of a prompt takes in more than it can finish. Decode starves, and when
the cache is full, preemption begins.

## Evidence
Prompt and generation throughput, tokens a second for each running request, how the cache grows.

## Next step
Reserve the full prompt at admission, lower the chunk or token budget, or cap the running requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

STARVED = 5.0
"""Generated tokens a second of one running request; people read about as fast."""
PREFILL_SHARE = 50.0
"""Times as many tokens of prompts as generated ones."""


def check(scene: Scene) -> Iterator[Signal]:
    """Compare what is taken in with what comes out; in the window, else in the log's statistics."""
    prompts, generated = scene.rate(names.COMPUTED_PREFILL), scene.rate(names.DECODED)
    running, waiting = scene.last.sum("running"), scene.last.sum("waiting")
    usage = [moment.most("token_usage") or 0.0 for moment in scene.moments]
    batches = [one for one in scene.logs.batches if one.kind == "stats"]
    if prompts is None and batches:
        last = batches[-1]
        prompts, generated, running, waiting = last.prompt_throughput, last.throughput, last.running, last.waiting
        usage = [one.token_usage or 0.0 for one in batches]
    if not prompts or generated is None or not running or not waiting:
        return
    if prompts < PREFILL_SHARE * max(generated, 1e-9) or generated / running >= STARVED:
        return
    rising = len(usage) > 1 and usage[-1] > usage[0] + 0.02
    yield signal(
        __name__,
        Problem.ADMISSION,
        Confidence.HIGH if rising else Confidence.MEDIUM,
        f"Prompts are computed at {shown(prompts, 0)} tokens/s while {whole(running)} running requests get "
        f"{shown(generated, 1)} tokens/s together, and {whole(waiting)} wait.",
        guess="admission looks at the first chunk of a prompt only; decode starves until the cache is full",
        evidence=[f"token_usage {shown(usage[0])} → {shown(usage[-1])} over the window"] if rising else [],
        rules_out=["idle capacity: the token budget is used up by prefill"],
        settles="reserve the full prompt at admission, and compare",
    )
