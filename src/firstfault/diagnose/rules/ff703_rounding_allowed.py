"""A variable in the environment by which products are computed with fewer bits than their dtype has.

## What it finds
Where the program said that numbers are not as close as they should be, or an evaluation fell short: a variable of the
session that lets libraries round single-precision inputs to TF32, or accumulate half precision in half precision.

## Why it matters
An image sets it once, and every matrix product of every process rounds to ten bits of mantissa (a relative error of
about 2⁻¹¹) before user code has run. Kernels, drivers and routing are searched in vain.

## Evidence
The variable and its value, and what the program said.

## Next step
Run the same without the variable, and compare the two recordings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.numerics import rounding
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.PRECISION
COMPLAINT = re.compile(
    r"not close|allclose|[Mm]ismatched elements|absolute difference|relative difference|tolerance|accuracy|precision",
)


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the environment, if the program complained of numbers."""
    if COMPLAINT.search(suspect.said) is None:
        return
    for name, value in rounding(suspect.environment):
        yield finding(
            __name__,
            suspect,
            Confidence.MEDIUM,
            [],
            f"{name}={value} lets libraries round the inputs of products, by about 2⁻¹¹ of their size, in every call",
            "run it without the variable, and compare",
            command=commands.record(level=5, env=f"env -u {name}"),
            evidence=[f"the session's environment has {name}={value}"],
            rules_out="any one operator, as long as the variable is set",
        )
