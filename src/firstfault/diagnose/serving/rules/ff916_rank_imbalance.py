"""Ranks are loaded unequally.

## What it finds
Schedulers of one server of which one has far more to do than the others: requests wait on it while others are free.

## Why it matters
Averages hide it: half of the users wait, and the gauges say that the server is half used. With attention data-parallel,
every step takes as long as the busiest rank's.

## Evidence
Running, waiting and usage of each rank.

## Next step
Look at the load-balancing method and at what ties requests to ranks (routing keys, sessions, cache affinity).
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.ranks import Moment, Rank
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

TIMES = 3.0
FEW = 4
"""Requests on the busiest rank, below which chance explains it."""


def check(scene: Scene) -> Iterator[Signal]:
    """Compare the busiest rank with the others, at every sample."""
    several = [moment for moment in scene.moments if len(moment.ranks) > 1]
    if not several or not all(_unequal(moment) for moment in several):
        return
    ranks = several[-1].ranks
    busiest = max(ranks, key=_requests)
    waits = (busiest.waiting or 0) > 0 and any(not rank.waiting and not rank.running for rank in ranks)
    yield signal(
        __name__,
        Problem.IMBALANCE,
        Confidence.HIGH if waits else Confidence.MEDIUM,
        f"Ranks are loaded unequally: {busiest.name} has {whole(_requests(busiest))} of "
        f"{whole(sum(map(_requests, ranks)))} requests on {len(ranks)} ranks.",
        guess="the balancer ties requests to ranks, or counts them by something else than their work",
        evidence=[
            f"{rank.name}: running={whole(rank.running)} waiting={whole(rank.waiting)} "
            f"token_usage={shown(rank.token_usage)}"
            for rank in ranks[:32]
        ],
        settles="change --load-balance-method, and compare",
        background=not waits,
    )


def _requests(rank: Rank) -> float:
    return (rank.running or 0.0) + (rank.waiting or 0.0)


def _unequal(moment: Moment) -> bool:
    loads = sorted(map(_requests, moment.ranks))
    others = sum(loads[:-1]) / (len(loads) - 1)
    return loads[-1] >= FEW and loads[-1] >= TIMES * max(others, 0.5)
