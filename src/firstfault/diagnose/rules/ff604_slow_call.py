"""A call that suddenly takes many times as long as it used to.

## What it finds
In a process that recorded times: calls that took at least five times as long as the earlier calls of the operator with
about as many bytes, five or more of them in a row; or a single one that took twenty times as long and a fifth of a
second more. First calls, which compile and allocate, are left out, and so is the time of recorded calls inside.

## Why it matters
The time to the first token, or between tokens, grows because of one step. Which of them it is, and since which call,
tells a changed shape, a fallback to a slow path, a lock or a page fault from a queue that is merely long. What waits
outside of calls (a scheduler, an admission gate, a client) does not show here: then no call has become slower.

## Evidence
Host times. On a GPU the call that waits for the device has the time of what it waits for. Where most operators have
become slow at once it is the machine, and the finding weighs little.

## Next step
See what changed with that call: its arguments beside those of the call before.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.durations import LASTING_CALLS, Slow

KIND = Kind.LATENCY
WORTH_OF_ALL = 0.05
"""What part of the time of all calls must have been lost by it."""


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look whether the call is the first of those that were slow."""
    durations = suspect.process.durations
    for slow in durations.slow:
        if slow.first is not suspect.call:
            continue
        everything = len({each.first.op for each in durations.slow}) * 2 > max(durations.measured, 2)
        weighs = slow.lost >= WORTH_OF_ALL * durations.total and not everything
        yield finding(
            __name__,
            suspect,
            Confidence.MEDIUM if weighs else Confidence.LOW,
            [],
            _text(slow),
            "see what changed with it: compare its arguments with those of the call before",
            verdict=Verdict.CAUSE,
            command=commands.slowest_calls(suspect.source, slow.first.op),
            evidence=[f"{slow.before} earlier calls with about as many bytes took {_time(slow.usual)}, the median"],
            rules_out="the calls around it: their times are as they were" if weighs else "",
        )


def _text(slow: Slow) -> str:
    call = f"{slow.first.op} (call {slow.first.n})"
    times = f"{slow.took / max(slow.usual, 1):.0f} times as long as before: {_time(slow.took)}, not {_time(slow.usual)}"
    if slow.calls < LASTING_CALLS:
        return f"{call} took {times}"
    until = "" if slow.ended else ", up to the last"
    return f"from {call} on, {slow.calls} calls of it took {times}{until}"


def _time(nanoseconds: int) -> str:
    """``21.4 ms``."""
    for unit, size in (("s", 10**9), ("ms", 10**6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1000:.3g} µs"
