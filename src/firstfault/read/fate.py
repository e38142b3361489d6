"""What became of NaN that a call gave: padded rows go nowhere where nobody reads them, or a mask takes them away.

    decode_attention (call 23)   3 NaN in out
      mask_rows (call 24)        given them, gave finite values     → absorbed

Integers tell nothing: the ids that a router picks of NaN are wrong, and finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from firstfault.read.calls import Call, State
from firstfault.read.tensors import Labelled, not_finite


class Fate(Enum):
    """What became of the values of a call's results that are not finite."""

    ABSORBED = "all that came of them ended in calls that gave finite values"
    UNREAD = "no call was given any"
    OPEN = "some went on, or it is not known whether they did"


def fate(call: Call, later: Iterable[Call], find: Callable[[int], Call | None]) -> Fate:
    """Follow the values that are not finite from a call's results to the calls that were given them.

    Args:
        call: it has come back, with such values in its results, or in what it wrote in place.
        later: the calls that began after it, by number; those that have not ended are among them.
        find: a call by its number.
    """
    waiting = {call.n: call}  # those whose results nobody has taken yet
    bad = {call.n}
    for other in later:
        writers = _read(other, bad)
        if any(writers.values()):
            if other.state is not State.RETURNED:
                return Fate.OPEN
            if not _gave_finite(other):
                waiting[other.n] = other
                bad.add(other.n)
        for n in writers:
            waiting.pop(n, None)
    if all(_ends_inside(one, find) for one in waiting.values()):
        return Fate.ABSORBED
    return Fate.UNREAD if call.n in waiting else Fate.OPEN


def bad_values(call: Call) -> int:
    """How many values in a call's results are known not to be finite."""
    return sum((tensor.nan_count or 0) + (tensor.inf_count or 0) for _, tensor in call.outputs())


def _read(call: Call, bad: set[int]) -> dict[int, bool]:
    """Of some calls those whose results a call was given, and whether what it was given of it is not finite."""
    found: dict[int, bool] = {}
    for label, tensor in call.given:
        for link in call.links.get(label, ()):
            if link.writer.n in bad:
                found[link.writer.n] = found.get(link.writer.n, False) or not_finite(tensor)
    return found


def _ends_inside(call: Call, find: Callable[[int], Call | None]) -> bool:
    """Whether a call was made inside one that gave finite values."""
    around = find(call.record.parent)
    while around is not None:
        if around.state is State.RETURNED and _gave_finite(around):
            return True
        around = find(around.record.parent)
    return False


def _gave_finite(call: Call) -> bool:
    """Whether a call gave floating-point numbers, all of them known to be finite, and wrote nothing else."""
    outputs = call.outputs()
    return bool(outputs) and not call.mutated and all(map(_is_finite, outputs))


def _is_finite(output: Labelled) -> bool:
    _, tensor = output
    return "float" in tensor.dtype and tensor.mean is not None and not not_finite(tensor)
