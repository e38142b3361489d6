"""An argument that is taken and not used.

## What it finds
Calls of one operator whose results are the same, value by value as far as statistics tell, although one of their
arguments is another and all others are the same: a number of three different values or more, or a tensor that is there
in one call and not in the other. From level 5 on.

## Why it matters
A backend accepts an option (sinks, a window, a penalty, a scale) in its signature and does not apply it. Nothing
fails; accuracy falls for the models that need the option, on that backend alone.

## Evidence
The calls, and the values that made no difference. Numbers weigh little where the program ended well: there are some
that rightly make no difference, as a limit that is not reached.

## Next step
Save the calls at level 10, and run one of them with both values on another backend.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.PRECISION
ENOUGH_VALUES = 3


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look whether the call is the last that showed it."""
    for ignored in suspect.process.ignored.found.values():
        if ignored.call is not suspect.call:
            continue
        absent = ignored.number and "None" in ignored.values and len(ignored.values) > 1
        sure = absent or (suspect.failed and ignored.number and len(ignored.values) >= ENOUGH_VALUES)
        yield finding(
            __name__,
            suspect,
            Confidence.MEDIUM if sure else Confidence.LOW,
            [ignored.label],
            f"{suspect.call.op} gave the same for {ignored.label} = {' and '.join(ignored.values)} (calls "
            f"{ignored.first} … {suspect.call.n}), with all else equal: it may not use it",
            "save both calls at level 10, and run them on another backend",
            verdict=Verdict.CAUSE,
            command=commands.record(level=10),
            rules_out="its other arguments: they were the same",
        )
