"""The prefix cache does not hit.

## What it finds
Lookups that grow while hits stay at nothing over a window or a life with enough of them, with the cache switched on; or
a hit rate that has fallen far below that of a baseline.

## Why it matters
Every prompt is then computed from its beginning, and the time to the first token is that of a cold prefill. Hits at
exactly zero are structural (a flag, a chat template that begins with the time, an alignment that never matches), not a
matter of the workload.

## Evidence
Lookups and hits in tokens, the switches that concern the cache, the baseline.

## Next step
Send the same long prompt twice and compare its cached tokens; then toggle what was changed last.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

ENOUGH_TOKENS = 20_000
"""Of prompts that were looked up, before hits at zero mean something."""
ENOUGH_REQUESTS = 20
FALLEN = 0.5
"""Of the baseline's hit rate."""


def check(scene: Scene) -> Iterator[Signal]:
    """Compare hits with lookups, and with a baseline."""
    if scene.server.get("disable_radix_cache") is True:
        return
    looked_up, hits = looked(scene)
    rate = hits / looked_up if looked_up else None
    known = _baseline(scene)
    prompts = scene.latency(names.PROMPT_LENGTH)
    enough = (looked_up or 0) >= ENOUGH_TOKENS and (prompts is None or prompts.life.count >= ENOUGH_REQUESTS)
    if known is not None and rate is not None and known >= 0.1 and rate < FALLEN * known:
        yield _signal(scene, Confidence.HIGH, f"The prefix-cache hit rate fell to {shown(rate)} from {shown(known)}.")
    elif rate == 0.0 and enough:
        yield _signal(
            scene,
            Confidence.MEDIUM,
            f"The prefix cache never hits: {whole(looked_up)} tokens were looked up, and none was found.",
        )
    elif _from_log(scene):
        yield _signal(scene, Confidence.LOW, "The prefix cache never hits: the log's hit rate is 0.0 % throughout.")


def looked(scene: Scene) -> tuple[float | None, float]:
    """Tokens that were looked up, and those that were found; over the window where there were any, else the life."""
    for count in (scene.grown, scene.counter):
        queries = count(names.CACHE_QUERIES)
        if queries:
            return queries, count(names.CACHE_HITS) or 0.0
        computed, cached = count(names.COMPUTED_PREFILL), count(names.CACHED)
        if computed and scene.engine == "sglang":
            return computed + (cached or 0.0), cached or 0.0
    return None, 0.0


def _baseline(scene: Scene) -> float | None:
    if scene.baseline is None:
        return None
    looked_up, hits = looked(scene.baseline)
    return hits / looked_up if looked_up else None


def _from_log(scene: Scene) -> bool:
    rates = [one.cache_hit_rate for one in scene.logs.batches if one.cache_hit_rate is not None]
    return len(rates) >= 3 and not any(rates) and not scene.scrapes


def _signal(scene: Scene, confidence: Confidence, text: str) -> Signal:
    switches = ("disable_radix_cache", "enable_hierarchical_cache", "speculative_algorithm", "chunked_prefill_size")
    told = [f"{name}={scene.server[name]}" for name in switches if name in scene.server]
    return signal(
        __name__,
        Problem.CACHE,
        confidence,
        text,
        guess="the cache is on, and what is stored is never what is looked up: a structural reason, not the workload",
        evidence=told,
        rules_out=["a failure: everything is answered, only later"],
        settles="send the same prompt twice; then toggle speculative decoding and the prompt's beginning",
    )
