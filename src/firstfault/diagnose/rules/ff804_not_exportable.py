"""Memory that cannot be shared with other processes, because of how the allocator maps it.

## What it finds
An ``invalid argument`` of CUDA in code that exports memory to other ranks (IPC handles, the registration of a custom
all-reduce's buffers, symmetric memory), in a session whose allocator is told to use expandable segments.

## Why it matters
Expandable segments are mapped by the virtual-memory API, whose memory the older IPC handles cannot export. It shows
where buffers are registered, while graphs are captured as a rule, and without the option the same program starts.

## Evidence
The message, and the allocator's configuration.

## Next step
Run without ``expandable_segments:True``, or with the custom all-reduce switched off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.complaints import EXPORT, INVALID_ARGUMENT
from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.GRAPH
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
EXPANDABLE = re.compile(r"expandable_segments: ?True", re.IGNORECASE)


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at what was said, and at the allocator's configuration."""
    said = f"{suspect.call.op} {suspect.said}"
    if INVALID_ARGUMENT.search(said) is None or EXPORT.search(said) is None:
        return
    name = next((name for name in VARIABLES if EXPANDABLE.search(suspect.environment.get(name, ""))), "")
    told = f"{name}={suspect.environment[name]}" if name else "the environment is not recorded, or does not have it"
    yield finding(
        __name__,
        suspect,
        Confidence.HIGH if name else Confidence.MEDIUM,
        [],
        f"{suspect.call.op} (call {suspect.call.n}) could not export memory to other processes ('invalid argument'), "
        "as memory of expandable segments cannot be",
        "run it without expandable_segments, or without the custom all-reduce",
        command=commands.record(env=f"env -u {name or VARIABLES[0]}"),
        evidence=[told],
        rules_out="a bad address: nothing was read or written",
    )
