"""A result all of whose values are the same, of inputs that differ.

## What it finds
The first calls of a process, known from level 5 on, that gave one value throughout (zero, as a rule) though no earlier
call of the operator did, and no input is constant.

## Why it matters
A kernel that was launched on no rows, returned early, or wrote elsewhere leaves its result as it was allocated.
Nothing fails; the text is garbage, or the accuracy gone.

## Evidence
The value, and the ranges of the inputs.

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
    for notice in suspect.notices(What.CONSTANT):
        yield finding(
            __name__,
            suspect,
            Confidence.MEDIUM,
            [notice.label],
            f"{suspect.call.op} (call {suspect.call.n}) gave {number(notice.tensor.max or 0)} throughout; "
            f"{notice.calls} earlier calls did not, and none of its inputs is constant",
            "record it once more at level 10, and run it by itself on the inputs that were saved",
            verdict=Verdict.CAUSE,
            command=commands.record(level=10),
            rules_out="the calls before it: what they gave to it differs",
        )
