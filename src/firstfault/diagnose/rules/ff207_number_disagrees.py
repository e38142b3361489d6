"""A number that was always the extent of a tensor, and is no longer.

## What it finds
An argument that is a whole number, and in every earlier call of the operator was equal to a dimension of one of its
tensors (the tokens of a batch, the length of a copy), and now is not. One that is larger than the dimension makes a
kernel read past the end.

## Why it matters
Counts are computed apart from the tensors that they count: by a scheduler, another rank, or for another step. Where
they disagree the fault lies with whoever computed them, not with the kernel that trusted them.

## Evidence
The number, the dimension, and how many earlier calls agreed.

## Next step
See where the number was computed, and for which batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.rules import Suspect, finding

KIND = Kind.MISMATCH
ENOUGH_CALLS = 2


def check(suspect: Suspect) -> Iterator[Finding]:
    """Compare whole numbers with the dimensions that they were always equal to."""
    if suspect.alike is None or suspect.count < ENOUGH_CALLS:
        return
    extents = {(label, dim): extent for label, tensor in suspect.tensors for dim, extent in enumerate(tensor.shape)}
    for label, value in suspect.call.inputs():
        tied = suspect.alike.numbers.get(label)
        if tied is None or not tied.positions or type(value) is not int:
            continue
        odd = next((position for position in sorted(tied.positions) if extents.get(position, value) != value), None)
        if odd is None:
            continue
        text = (
            f"{label} is {value} and dimension {odd[1]} of {odd[0]} is {extents[odd]}; "
            f"{suspect.in_earlier_calls} they were equal"
        )
        sure = tied.varied and value > extents[odd]
        yield finding(
            __name__,
            suspect,
            Confidence.HIGH if sure else Confidence.MEDIUM,
            [label, odd[0]],
            text,
            f"see where {label} was computed, and for which batch",
            verdict=Verdict.SUSPICIOUS,
            rules_out=f"{suspect.call.op}: it was told to take more than there is" if sure else "",
        )
