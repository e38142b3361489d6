"""A call that made NaN or infinity of finite inputs.

## What it finds
The first calls of a process, known from level 5 on, all of whose inputs were finite and whose result was not; where a
call wrote it in place, the next call that read it shows it. Infinities that are all negative are left out: that is how
masks are made.

## Why it matters
Everything downstream inherits the value: this is where the numbers first went wrong. The inputs that were recorded
were finite, so it is the operator itself, what it read besides (weights of a module, a cache, a scale, padded rows of
an earlier batch), or memory that it left unwritten.

## Evidence
The counts in the result, and the ranges of the inputs.

## Next step
Record once more at level 10, and run the call by itself on the inputs that were saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.diagnose.rules.ff301_not_finite import ABSORBED, counts
from firstfault.read.tensors import Labelled, not_finite
from firstfault.record.text_log import number

KIND = Kind.NOT_A_NUMBER


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look whether the call is among those that were the first to make such values."""
    if suspect.call.n not in suspect.process.origins or _is_told_already(suspect):
        return
    absorbed = suspect.call.n in suspect.process.absorbed
    bad = [(label, tensor) for label, tensor in suspect.call.outputs() if not_finite(tensor)]
    made = ", ".join(f"{counts(tensor)} in {label}" for label, tensor in bad)
    changed = ", ".join(suspect.call.mutated) or "what it was given"
    what = f"made {made}" if bad else f"wrote what a later call found not finite, in {changed}"
    yield finding(
        __name__,
        suspect,
        Confidence.LOW if absorbed else Confidence.HIGH if _is_certain(bad) else Confidence.MEDIUM,
        [label for label, _ in bad],
        f"{suspect.call.op} (call {suspect.call.n}) {what}, though all its inputs were finite"
        + (ABSORBED if absorbed else ""),
        "record it once more at level 10, and run it by itself on the inputs that were saved",
        verdict=Verdict.CAUSE,
        command=commands.record(level=10),
        evidence=[_range(label, suspect) for label, _ in suspect.tensors],
        rules_out="the calls before it: what they gave to it was finite",
    )


def _is_told_already(suspect: Suspect) -> bool:
    """Whether an earlier call of the operator made such values, and of the same weight."""
    origins, absorbed = suspect.process.origins, suspect.process.absorbed
    call = suspect.call
    return any(
        one.op == call.op and one.n < call.n and (one.n in absorbed) == (call.n in absorbed) for one in origins.values()
    )


def _is_certain(bad: list[Labelled]) -> bool:
    """Whether it is more than a rare infinity: NaN, or seen by a later call."""
    return not bad or any(tensor.nan_count or tensor.mean == "nan" for _, tensor in bad)


def _range(label: str, suspect: Suspect) -> str:
    tensor = dict(suspect.tensors)[label]
    if tensor.min is None or tensor.max is None:
        return f"{label} of call {suspect.call.n}: {tensor.statistics or 'not measured'}"
    return f"{label} of call {suspect.call.n}: {number(tensor.min)} … {number(tensor.max)}"
