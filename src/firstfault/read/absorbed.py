"""Whether NaN that a call gave went nowhere: padded rows that nobody reads, or that a mask takes away.

    decode_attention (call 23)   3 NaN in out
      mask_rows (call 24)        given them, gave finite values     → absorbed

Integers tell nothing: the ids that a router picks of NaN are wrong, and finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from firstfault.read.calls import Call, State
from firstfault.read.tensors import Labelled, not_finite

MOST_CALLS = 10_000
"""Calls after it that are looked at."""


def is_absorbed(call: Call, later: Iterable[Call], find: Callable[[int], Call | None]) -> bool:
    """Whether every value that is not finite and that came of a call's results ended in a call that gave finite ones.

    Args:
        call: it has come back, with such values in its results, or in what it wrote in place.
        later: the calls that began after it, by number; those that have not ended are among them.
        find: a call by its number.
    """
    waiting = {call.n: call}  # those whose results nobody has taken yet
    bad = {call.n}
    for _, other in zip(range(MOST_CALLS), later, strict=False):
        writers = _read(other, bad)
        if not writers:
            continue
        if any(writers.values()):
            if other.state is not State.RETURNED:
                return False
            if not _gave_finite(other):
                waiting[other.n] = other
                bad.add(other.n)
        for n in writers:
            waiting.pop(n, None)
    return all(_ends_inside(one, find) for one in waiting.values())


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
