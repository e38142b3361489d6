"""Something that waits for the device, while its work is being captured into a CUDA graph.

## What it finds
A call that raised the error of a captured stream: what it did is not permitted then. Masks as indices, ``item()``,
``nonzero``, copies to the host and allocations outside the graph's pool all wait for the device in hiding; memory of
expandable segments cannot be exported to other processes.

## Why it matters
Eager runs are right, and only capture fails. The operator that hides the wait is in the call named here.

## Evidence
The error, and the call that raised it.

## Next step
Replace what waits by something of fixed size: ``torch.where`` for a mask, a gather of constant length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.GRAPH
COMPLAINT = re.compile(
    r"when stream is capturing|StreamCapture\w*|captures_underway|Cannot \w+ during (?:CUDA graph )?capture",
    re.IGNORECASE,
)


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at what the call raised."""
    call = suspect.call
    complaint = COMPLAINT.search(f"{call.exception} {call.message}")
    if complaint is None:
        return
    yield finding(
        __name__,
        suspect,
        Confidence.HIGH,
        [],
        f"{call.op} (call {call.n}) did something that waits for the device while its stream was being captured: "
        f"{call.message.partition(chr(10))[0][:200]}",
        "run it eagerly, and replace what waits (a mask as index, item(), nonzero, a copy to the host)",
        verdict=Verdict.CAUSE,
        command=commands.record(env="TORCH_SHOW_CPP_STACKTRACES=1"),
        rules_out="the values: eager runs of the same call do not fail",
    )
