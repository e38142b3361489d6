"""A result a thousand times larger than all before it, of inputs that had not grown.

## What it finds
The first calls of a process, known from level 5 on, whose result has a magnitude of more than a thousand times that of
every earlier result of the operator, while its inputs are at most ten times what they were.

## Why it matters
The numbers went wrong here, before anything is NaN: a scale that was not applied, an accumulator that was not reset,
a dtype taken for another, or memory that was never written. A few calls later it is an infinity.

## Evidence
The range of the result, what it was before, and the ranges of the inputs.

## Next step
Record once more at level 10, and run the call by itself on the inputs that were saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.results import What
from firstfault.record.text_log import number

KIND = Kind.NOT_A_NUMBER


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look whether the call's result was noticed."""
    for notice in suspect.notices(What.JUMP):
        tensor = notice.tensor
        yield finding(
            __name__,
            suspect,
            Confidence.HIGH,
            [notice.label],
            f"{suspect.call.op} (call {suspect.call.n}) gave values from {number(tensor.min or 0)} to "
            f"{number(tensor.max or 0)}; in {notice.calls} earlier calls they stayed within {notice.before:g}, "
            "and its inputs had not grown",
            "record it once more at level 10, and run it by itself on the inputs that were saved",
            verdict=Verdict.CAUSE,
            command=commands.record(level=10),
            rules_out="the calls before it: what they gave to it is as it was",
        )
