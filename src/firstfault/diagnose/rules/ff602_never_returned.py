"""A call that never came back.

## What it finds
A call in flight in a process that runs still, or that was stopped from outside (SIGKILL, SIGTERM, SIGINT, SIGALRM,
SIGQUIT): it did not fail, it hung. A collective weighs most: its peers were elsewhere. Any other call weighs little
where the process was stopped before it had taken much longer than such calls do: that is no hang.

## Why it matters
A collective waits until every rank takes part. One rank that returned early, died, or took another branch leaves the
others in it for ever, and the rank to look at is the one that is not there.

## Evidence
The call, and how the process ended.

## Next step
Compare what every rank was in; where one is missing, see what it did last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.calls import State
from firstfault.read.durations import TIMES

KIND = Kind.HANG
WORTH_A_WORD = 10**9
"""Nanoseconds that a call may take without a word, however long such calls take."""
COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|(?:^|[._])(?:send|recv)(?:$|[._])",
    re.IGNORECASE,
)


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look whether the call is open in a process that did not fail by itself."""
    call = suspect.call
    if call.state is not State.IN_FLIGHT or not suspect.stopped:
        return
    collective = COLLECTIVE.search(call.op) is not None
    waits = ": it waits for every rank, and which of them did not come is in their own records" if collective else ""
    brief = None if collective else _brief(suspect)
    if brief is not None:
        waits = f"; it was {brief / 1e6:.3g} ms old, which is not long for it"
    yield finding(
        __name__,
        suspect,
        Confidence.MEDIUM if brief is None else Confidence.LOW,
        [],
        f"{call.op} (call {call.n}) had not come back when the process was stopped from outside (a watchdog, a user, "
        f"or the kernel for want of memory){waits}",
        "compare what every rank was in" if collective else "look at where it is, while it hangs",
        command="firstfault report RECORDING-OF-EACH-RANK" if collective else "firstfault live PID",
        rules_out="a crash: the process did not end by itself",
    )


def _brief(suspect: Suspect) -> int | None:
    """How long the call had taken when all ended, if that is known and no longer than such calls may take."""
    begun = suspect.call.record.t
    if not begun or suspect.ended_at < begun:
        return None
    took = suspect.ended_at - begun
    usual = suspect.process.durations.usual(suspect.call)
    return took if took <= max(TIMES * usual, WORTH_A_WORD) else None
