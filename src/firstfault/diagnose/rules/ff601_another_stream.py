"""A value that was written on one stream and read on another.

## What it finds
An argument whose last writer was enqueued on another stream of the same device than the call that was given it. Events
that order the two are not recorded, so it is a suspicion: they may be in order.

## Why it matters
Without an event between them the reader may run first. What it reads depends on timing, and goes away under
``CUDA_LAUNCH_BLOCKING=1``, under a debugger and under a recorder that waits. Two calls of one communicator at a time
wait for each other for ever.

## Evidence
The calls and their streams.

## Next step
Let the reading stream wait for the writing one, and see whether the fault goes away.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.ILLEGAL_ACCESS


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare the call's stream with those of its arguments' writers."""
    record = suspect.call.record
    if record.device < 0:
        return
    for label, links in suspect.call.links.items():
        writer = links[0].writer
        if writer.stream is None or writer.stream == record.stream:
            continue
        text = (
            f"{label} was written by {writer.op} (call {writer.n}) on stream {writer.stream:#x}, and is read on "
            f"stream {record.stream:#x}; whether one waits for the other is not recorded"
        )
        step = "let the reading stream wait for the writing one, and see whether the fault goes away"
        yield finding(__name__, suspect, Confidence.LOW, [label], text, step, command=suspect.trace(label))
