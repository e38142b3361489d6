"""A collective failed between ranks.

## What it finds
An error of NCCL or gloo in the server's log: a watchdog's timeout, a peer that is gone, messages of unequal size.

## Why it matters
Two sizes that do not match are two different collectives that met: one rank is a collective ahead. That is a decision
that ranks made differently, and no fault of the network.

## Evidence
What was said, and by which rank.

## Next step
Compare the ordered list of collectives of every rank, up to the first that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.read.formats.complaint import Teller

SIZES = re.compile(r"preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")


def check(scene: Scene) -> Iterator[Signal]:
    """Look for what collectives said."""
    said = [one for one in scene.logs.complaints if one.teller in (Teller.NCCL, Teller.GLOO)]
    if not said:
        return
    first = said[0]
    sizes = next((found for one in said if (found := SIZES.search(f"{one.text} {one.details}")) is not None), None)
    yield signal(
        __name__,
        Problem.HANG,
        Confidence.HIGH,
        f"A collective failed between ranks: {first.text}.",
        guess=f"two different collectives met ({sizes[1]} against {sizes[2]} bytes): one rank is a collective ahead"
        if sizes
        else "a rank did not enter a collective that the others wait in, or is gone",
        evidence=[f"{one.teller.value}{f' of rank {one.rank}' if one.rank else ''}: {one.text}" for one in said[:6]],
        rules_out=["the network, where sizes do not match"] if sizes else [],
        settles="compare what every rank called, in order",
    )
