"""The configuration is not the one that worked.

## What it finds
Arguments, versions or weights that differ from those of the baseline bundle.

## Why it matters
Wrong outputs and sudden slowness after a deploy are most often a flag, a backend or a revision, and no kernel.

## Evidence
Each value then and now, those that change what is computed first.

## Next step
Set them back one by one; compare both bundles in full.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.comparison import configuration
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal

MOST_SHOWN = 10


def check(scene: Scene) -> Iterator[Signal]:
    """Compare with the baseline, where there is one."""
    if scene.baseline is None:
        return
    changes = configuration(scene.baseline, scene)
    if not changes:
        return
    weighty = [change for change in changes if change.weight >= 2]
    shown = [f"{change.name}: {change.before} → {change.after}" for change in changes]
    yield signal(
        __name__,
        Problem.DRIFT,
        Confidence.MEDIUM if weighty else Confidence.LOW,
        f"{len(changes)} settings differ from the baseline: {', '.join(change.name for change in changes[:5])}.",
        guess="what was changed since is the first suspect",
        evidence=shown[:MOST_SHOWN],
        settles="set them back one by one",
        background=True,
    )
