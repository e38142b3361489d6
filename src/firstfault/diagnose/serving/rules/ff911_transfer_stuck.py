"""A queue of prefill-decode disaggregation does not move.

## What it finds
Requests in the bootstrap, in-flight, preallocation or transfer queue at every sample while no transfer ends in the
window, or transfers that fail.

## Why it matters
Those queues are not the waiting queue: /v1/loads says waiting=0, and requests time out all the same. The fault is then
in the connection between the two sides, or in room on the decode side.

## Evidence
Each queue over the window, transfer failures, speed of the transfers that ended.

## Next step
Take a bundle of both sides, and look at bootstrap port, RDMA device and free tokens on the decode side.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.ranks import Moment
from firstfault.diagnose.serving.rules import signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.read.bundle import number

QUEUES = tuple(names.DISAGGREGATION)


def check(scene: Scene) -> Iterator[Signal]:
    """Look at each queue of both sides over the window."""
    failed = scene.grown(names.TRANSFER_FAILED) or 0.0
    stuck = [
        (queue, [depth(moment, queue) for moment in scene.moments])
        for queue in QUEUES
        if scene.moments and all(depth(moment, queue) > 0 for moment in scene.moments)
    ]
    standing = [(queue, depths) for queue, depths in stuck if len(depths) > 1 and depths[-1] >= depths[0]]
    if not standing and not failed:
        return
    named = ", ".join(f"{queue}={whole(depths[-1])}" for queue, depths in standing)
    moved = scene.grown(names.REQUESTS)
    text = f"Requests stand in queues of disaggregation: {named}." if named else f"{whole(failed)} transfers failed."
    yield signal(
        __name__,
        Problem.TRANSFER,
        Confidence.HIGH if not moved or failed else Confidence.MEDIUM,
        text,
        guess=_guess([queue for queue, _ in standing]),
        evidence=[
            *(f"{queue} over the window: {' → '.join(map(whole, depths))}" for queue, depths in standing),
            f"finished in the window: {whole(moved)}, failed transfers: {whole(failed)}",
        ],
        rules_out=["the waiting queue: these requests have left it"],
        settles="take a bundle of the other side at the same time",
    )


def depth(moment: Moment, queue: str) -> float:
    """How many requests stand in a queue, over all ranks."""
    return sum(number(rank.disaggregation, queue) or 0.0 for rank in moment.ranks)


def _guess(queues: list[str]) -> str:
    if "decode_prealloc_queue_reqs" in queues:
        return "the decode side has no room to preallocate for"
    if "prefill_bootstrap_queue_reqs" in queues:
        return "the decode side does not answer the bootstrap"
    return "keys and values do not arrive: the transfer between the two sides is stuck"
