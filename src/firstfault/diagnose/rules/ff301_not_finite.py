"""NaN or infinity among the inputs.

## What it finds
An input with NaN or infinite values, known from level 5 on, and by the calls that wrote it the first one whose inputs
were finite. It weighs less where earlier calls of the operator came back with such values in the same place, as with
padding that nobody reads; where the recorded calls that were given what came of them gave finite values; and where all
of them are minus infinity, which is how masks are made.

## Why it matters
The bad value existed before this call: the call that shows it, or faults on it, is not the one that made it.

## Evidence
The counts, and the calls that the value went through.

## Next step
Look at the inputs of the call that made it; where none is known, follow the argument upstream.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.tensors import not_finite
from firstfault.record import schema

KIND = Kind.NOT_A_NUMBER
ABSORBED = "; what was given that gave finite values, or was given another part of it"


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the counts, and at a mean that is not a number."""
    for label, tensor in suspect.tensors:
        bad = counts(tensor)
        if not bad:
            continue
        known = suspect.earlier(label)
        text = f"{label} of shape {tensor.shape} holds {bad} before the call"
        confidence = Confidence.HIGH if not_finite(tensor) else Confidence.LOW
        before = known.not_finite - suspect.counts_itself if known is not None else 0
        if before > 0:
            text += f"; so it did in {before} of {suspect.count} earlier calls that came back"
            confidence = Confidence.LOW
        if suspect.call.n in suspect.process.absorbed:
            text += ABSORBED
            confidence = Confidence.LOW
        origin = suspect.origin(label, shows)
        step = f"follow {label} upstream to the first call whose inputs are finite and whose output is not"
        yield finding(
            __name__,
            suspect,
            confidence,
            [label],
            text,
            *suspect.follow(label, step, origin),
            verdict=Verdict.OUTSIDE if suspect.call.n in suspect.process.entries else Verdict.SUSPICIOUS,
            rules_out=f"{suspect.call.op} having made it",
            origin=origin,
        )


def shows(tensor: schema.Tensor) -> bool | None:
    """Whether a tensor holds such values; None where that was not measured."""
    if "float" in tensor.dtype and tensor.mean is None and tensor.statistics is None:
        return None
    return not_finite(tensor)


def counts(tensor: schema.Tensor) -> str:
    """How many such values there are, in words; empty for none."""
    counted = ((tensor.nan_count, "NaN"), (tensor.inf_count, "Inf"))
    parts = [f"{count} {name}" for count, name in counted if count]
    if not parts and tensor.mean == "nan":
        parts = ["NaN"]
    return " and ".join(parts)
