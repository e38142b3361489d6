"""A stall: requests are under way, and nothing moves.

## What it finds
Counters of work that stand still over the window while requests run, load snapshots that no scheduler renews, health
checks that time out while endpoints of the HTTP front answer, or a watchdog that fired.

## Why it matters
A hung scheduler looks alive: /metrics and /v1/loads are answered by the HTTP front from the last that it was told. In a
group of ranks, the one to look at is the one that is elsewhere, not the ones that wait.

## Evidence
The counters that did not move, the age of the load snapshot, what timed out, the watchdog's line, where the stacks are.

## Next step
Save the request, then compare where every rank is: stacks and, for collectives, what each rank was in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.read.bundle import Result
from firstfault.record import bundle

STALE = 10.0
"""Seconds; SGLang's scheduler renews its snapshot every few steps while it works, and when it falls idle."""
WAITED = 5.0
"""Seconds."""
BUSY_GPU = 95.0
COLLECTIVE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier", re.IGNORECASE)
WORKER = re.compile(r"scheduler|worker|EngineCore", re.IGNORECASE)


def check(scene: Scene) -> Iterator[Signal]:
    """Look for work that stands still."""
    signs = [*_counters(scene), *_health(scene), *_watchdog(scene), *_processes(scene)]
    if not signs:
        return
    collectives = list(_collectives(scene))
    strong = len(signs) > 1 or bool(scene.logs.watchdog) or bool(collectives)
    yield signal(
        __name__,
        Problem.HANG,
        Confidence.HIGH if strong else Confidence.MEDIUM,
        f"The engine stands still: {signs[0]}.",
        guess=_guess(scene),
        evidence=[*signs[1:], *collectives, *_gpus(scene), *_stacks(scene)],
        rules_out=["a slow but working engine: its counters would move", "queueing: what runs does not advance either"],
        settles="compare where every rank is",
    )


def _counters(scene: Scene) -> Iterator[str]:
    if not scene.frozen:
        return
    running, waiting = scene.last.sum("running"), scene.last.sum("waiting")
    yield (
        f"no counter of tokens or steps moved in {shown(scene.still, 1)} s while running={whole(running)} "
        f"waiting={whole(waiting)} open_http_requests={whole(scene.open_requests)}"
    )
    if scene.still >= STALE:
        yield f"that is longer than any step takes that is not stuck ({shown(STALE, 0)} s)"
    if scene.lag is not None and scene.lag > STALE:
        yield f"the load snapshot is {shown(scene.lag, 0)} s old"


def _health(scene: Scene) -> Iterator[str]:
    """Health checks that run through the scheduler, against endpoints that only the front answers."""
    checks = (bundle.HEALTH, bundle.HEALTH_GENERATE)
    results = [result for file in checks if (result := scene.result(file)) is not None]
    hung = [one for one in results if one.failure == "TimeoutError" or (one.status == 503 and _slow(one))]
    if not hung:
        return
    front = [
        file for file in (bundle.METRICS, bundle.MODEL_INFO, bundle.READY, bundle.VERSION) if scene.bundle.ok(file)
    ]
    named = " and ".join(result.path for result in hung)
    if front:
        yield f"{named} came back with {hung[0].failure or hung[0].status} while the HTTP front answered"
    elif scene.timed_out:
        yield f"{named} timed out, and so did {len(scene.timed_out)} of {len(scene.bundle.results)} endpoints"


def _slow(result: Result) -> bool:
    """Whether a 503 came after SGLang's health check had waited for the scheduler, not at once as while starting."""
    return result.seconds is not None and result.seconds >= WAITED


def _watchdog(scene: Scene) -> Iterator[str]:
    logs = scene.logs
    if logs.watchdog:
        yield f"a watchdog fired: {logs.watchdog[-1]}"
    elif logs.unhealthy:
        yield f"the log says: {logs.unhealthy[-1]}"


def _processes(scene: Scene) -> Iterator[str]:
    for one in scene.stopped:
        yield f"process {one.get('pid')} ({one.get('name')}) is {one.get('status')}: somebody stopped it"


def _gpus(scene: Scene) -> Iterator[str]:
    busy = [gpu for gpu in scene.bundle.gpus if (gpu.get("utilization") or 0) >= BUSY_GPU]
    if busy:
        yield f"{len(busy)} of {len(scene.bundle.gpus)} GPUs are at full utilisation: a kernel spins on the device"


def _collectives(scene: Scene) -> Iterator[str]:
    """Who waits in a collective, and who is elsewhere: that one is the one to look at."""
    inside = [pid for pid, stack in scene.bundle.stacks.items() if COLLECTIVE.search(stack)]
    workers = {str(one.get("pid")) for one in scene.bundle.processes if WORKER.search(str(one.get("name")))}
    elsewhere = [pid for pid in scene.bundle.stacks if pid not in inside and (not workers or pid in workers)]
    if inside and elsewhere:
        yield f"{len(inside)} processes wait in a collective; elsewhere are {', '.join(elsewhere[:8])}"
    elif inside:
        yield f"{len(inside)} processes wait in a collective"


def _stacks(scene: Scene) -> Iterator[str]:
    for pid, text in scene.bundle.stacks.items():
        if "resource_tracker" in text:  # Python's own, of no interest
            continue
        innermost = next((line.strip() for line in text.split("\n") if line.startswith("    ")), "")
        if innermost:
            yield f"process {pid} is in {innermost}"


def _guess(scene: Scene) -> str:
    stacks = "\n".join(scene.bundle.stacks.values())
    if scene.stopped:
        return "a process of the server was stopped by a signal (SIGSTOP) or a debugger"
    if COLLECTIVE.search(stacks):
        return "a rank waits in a collective that another rank did not enter"
    if any(word in stacks for word in ("Synchronize", "synchronize")):
        return "the host waits for the device: a kernel or a collective does not end"
    return "the scheduler is blocked: in a collective, on the device, or in a request's own work"
