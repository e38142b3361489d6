"""A request that does not fit blocks the queue.

## What it finds
Requests wait though the cache has room and slots are free, and what waits (or the longest prompts that were seen) has
more tokens than are free: the head of the queue does not fit. In order, everything behind it waits with it.

## Why it matters
Small requests then see the latency of the largest. More replicas do not help; admission does.

## Evidence
Waiting requests and their tokens, free tokens, what runs.

## Next step
Capture what waits, and look at the longest prompt; cap it, or schedule around it.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

FULL = 0.95
"""Share of the cache from which on it is capacity that everything waits for."""


def check(scene: Scene) -> Iterator[Signal]:
    """Look for a queue in front of a cache with room."""
    logs = scene.logs
    if logs.too_long:
        yield signal(
            __name__,
            Problem.TOO_LARGE,
            Confidence.MEDIUM,
            f"The log tells of a request that can never fit: {logs.too_long[-1]}",
            guess="a client sends prompts that are longer than the server can take",
            background=True,
        )
    free = _free(scene)
    waited = [moment for moment in scene.moments if (moment.sum("waiting") or 0) > 0]
    if free is None or not waited or len(waited) < len(scene.moments) or scene.frozen or not _slots_left(scene):
        return
    size, of = _largest(scene)
    if size is None or size <= free:
        return
    yield signal(
        __name__,
        Problem.TOO_LARGE,
        Confidence.HIGH if len(scene.moments) > 1 else Confidence.MEDIUM,
        f"waiting={whole(scene.last.sum('waiting'))} requests wait while token_usage="
        f"{shown(scene.last.most('token_usage'))} leaves {whole(free)} tokens, and {of} has {whole(size)} or more.",
        guess="the request at the head of the queue does not fit, and what stands behind it waits with it",
        evidence=_evidence(scene),
        rules_out=["a full KV cache: there is room for small requests", "slots for running requests: some are free"],
        settles="look at the longest prompt that waits",
    )


def _free(scene: Scene) -> float | None:
    """Tokens that are free on the rank that has the most room; None where the cache is full or that is not known."""
    usage = [rank.token_usage for rank in scene.last.ranks if rank.token_usage is not None]
    if scene.capacity is None or not usage or min(usage) >= FULL:
        return None
    return scene.capacity * (1 - min(usage))


def _slots_left(scene: Scene) -> bool:
    """Whether more requests could run, as far as their number goes."""
    slots = scene.most_running
    return slots is None or any((rank.running or 0.0) < slots for rank in scene.last.ranks)


def _largest(scene: Scene) -> tuple[float | None, str]:
    """The size of what waits in tokens: its average where that is told, else that of the longest prompts seen."""
    tokens, waiting = scene.last.sum("waiting_tokens"), scene.last.sum("waiting")
    average = tokens / waiting if tokens and waiting else None
    prompts = scene.latency(names.PROMPT_LENGTH)
    longest = prompts.life.at_least(0.99) if prompts is not None else None
    if average is not None and (longest is None or average >= longest):
        return average, "an average one of them"
    return longest, "one prompt in a hundred"


def _evidence(scene: Scene) -> list[str]:
    tokens = scene.last.sum("waiting_tokens")
    told = [f"tokens that wait: {whole(tokens)}"] if tokens is not None else []
    return [
        *told,
        f"capacity: {whole(scene.capacity)} tokens, used: {whole(scene.last.sum('used'))}, "
        f"running={whole(scene.last.sum('running'))}",
    ]
