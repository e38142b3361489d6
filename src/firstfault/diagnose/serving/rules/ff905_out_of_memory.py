"""The device ran out of memory.

## What it finds
An allocation that failed, in the server's log.

## Why it matters
How much was asked for tells what it was: a multiple of the context length is one request's, a multiple of the
vocabulary is logits, a share of the cache is start-up. Lowering the static memory fraction only moves the point.

## Evidence
The line of the log, with the size that was asked for and where.

## Next step
Replay the request that was being prefilled; record its calls with shapes to see which tensor it was.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.read.formats.complaint import Teller


def check(scene: Scene) -> Iterator[Signal]:
    """Look for a failed allocation in the logs."""
    said = [one for one in scene.logs.complaints if one.teller is Teller.MEMORY or "out of memory" in one.text.lower()]
    if not said:
        return
    first = said[0]
    size = f" ({first.nbytes / 2**30:.2f} GiB asked for)" if first.nbytes else ""
    phase = " while it started" if not scene.logs.ready and not scene.logs.batches else ""
    yield signal(
        __name__,
        Problem.OUT_OF_MEMORY,
        Confidence.HIGH,
        f"The device ran out of memory{phase}: {first.text}{size}.",
        guess="one request's own tensors are larger than what is left beside weights and KV cache"
        if not phase
        else "weights, KV cache and graphs together are larger than the device",
        evidence=[f"at {first.host}"] if first.host else ([f"at {scene.logs.frame}"] if scene.logs.frame else []),
        rules_out=["KV-cache pressure: that queues or retracts requests, it does not fail allocations"],
        settles="record the shapes of its calls, and test a smaller --chunked-prefill-size",
    )
