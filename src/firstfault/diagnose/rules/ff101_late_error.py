"""An error of the device that surfaced in a later call than the one whose kernel failed.

## What it finds
A call that raised an error of the device, in a process that left no progress markers, and of which nothing else says
which kernel failed. The host runs ahead of the device: the error is reported by whichever call asks next, and every
call after it. Launch blocking does not help where launches are not checked.

## Why it matters
The call in the traceback is the first suspect of everyone, and as a rule innocent.

## Evidence
The message, and how many calls had returned to the host before it, any of which may have failed on the device.

## Next step
Run once more on the GPU with firstfault, whose progress markers the device writes itself, and with a GPU core dump.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.complaints import INVALID_ARGUMENT
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.formats.errors_text import DEVICE_ERROR

KIND = Kind.ILLEGAL_ACCESS


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at what the call raised, and whether anything tells how far the device had got."""
    call = suspect.call
    said = f"{call.exception} {call.message}"
    if suspect.witnessed or DEVICE_ERROR.search(said) is None or INVALID_ARGUMENT.search(said) is not None:
        return
    yield finding(
        __name__,
        suspect,
        Confidence.MEDIUM,
        [],
        f"the error surfaced in {call.op} (call {call.n}); whether its own kernel failed, or one of a call before it "
        "or of unrecorded code, is not recorded",
        "record how far the device gets, and have it write a core dump",
        verdict=Verdict.CANNOT_TELL,
        command="CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 firstfault run --level 5 -- COMMAND",
        evidence=[f"call {call.n} raised {call.exception}: {call.message.partition(chr(10))[0][:300]}"],
        rules_out=f"taking {call.op} for the culprit because it is in the traceback",
    )
