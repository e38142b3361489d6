"""The same index several times, where each was to be another.

## What it finds
Indices that name the same thing more than once although an operator takes them for different ones: the experts of a
token, all of which are one; and a permutation, whose mean shows that it is none. What is a permutation the name of the
operator or argument tells, or earlier calls, all of which had one there: then it weighs only if what the call made of
it holds numbers as memory does that nobody wrote.

## Why it matters
Whoever counts or scatters by them leaves entries unwritten, and what lies in these is used as an index next. A router
whose logits are all NaN gives expert 0 for every choice.

## Evidence
Smallest, largest and mean, which for a permutation of n are 0, n - 1 and (n - 1) / 2.

## Next step
Look at the inputs of the call that made the indices, at the rows that are padding first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firstfault.diagnose import contracts
from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.calls import Call
from firstfault.read.earlier import EXACT, may_be_permutation
from firstfault.read.formats.values import elements
from firstfault.read.tensors import whole
from firstfault.record import schema

KIND = Kind.ILLEGAL_ACCESS
CHOICES = re.compile(r"topk|moe|expert|route", re.IGNORECASE)
PERMUTATION = re.compile(r"perm|shuffle|reorder|argsort", re.IGNORECASE)
SORTS = re.compile(r"argsort", re.IGNORECASE)
"""Operators that give permutations, of whatever they are given."""
ENOUGH_CALLS = 2
FAR = 2**24


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look at the indices of operators that route or permute."""
    for label, tensor in suspect.tensors:
        if not contracts.is_integer(tensor):
            continue
        op = suspect.call.op.rpartition(".")[2]
        text = _one_choice(f"{op} {label}", label, tensor) or _no_permutation(op, label, tensor)
        if text:
            yield finding(
                __name__,
                suspect,
                Confidence.MEDIUM,
                [label],
                text,
                *suspect.follow(label, f"look at the inputs of the call that made {label}"),
                origin=suspect.producer(label),
            )
        elif _was_permutation(suspect, label, tensor):
            yield finding(
                __name__,
                suspect,
                Confidence.MEDIUM if _made_garbage(suspect.call) else Confidence.LOW,
                [label],
                f"{label} is no permutation of {elements(tensor.shape)}, as it was {suspect.in_earlier_calls}",
                *suspect.follow(label, f"look at the inputs of the call that made {label}"),
                origin=suspect.producer(label),
            )


def _was_permutation(suspect: Suspect, label: str, tensor: schema.Tensor) -> bool:
    """Whether an argument is none and was one in all earlier calls."""
    known, low, high = suspect.earlier(label), whole(tensor.min), whole(tensor.max)
    if known is None or low is None or high is None or may_be_permutation(tensor):
        return False
    within = low >= 0 and high < elements(tensor.shape)  # else it is an index of something else
    return within and suspect.count >= ENOUGH_CALLS and known.permuted >= suspect.count


def _made_garbage(call: Call) -> bool:
    """Whether a result has whole numbers that are no places in anything."""
    highest = (whole(tensor.max) for _, tensor in call.outputs() if contracts.is_integer(tensor))
    return any(high is not None and high >= FAR for high in highest)


def _one_choice(name: str, label: str, tensor: schema.Tensor) -> str:
    rows, choices = (tensor.shape[0], tensor.shape[1]) if len(tensor.shape) == 2 else (0, 0)
    same = whole(tensor.min)
    if not CHOICES.search(name) or rows < 1 or choices < 2 or same is None or same < 0 or tensor.min != tensor.max:
        return ""
    return f"all {choices} choices of all {rows} rows of {label} are {same}; each was to be another"


def _no_permutation(op: str, label: str, tensor: schema.Tensor) -> str:
    count, low, high = elements(tensor.shape), whole(tensor.min), whole(tensor.max)
    mean = tensor.mean
    name = SORTS.sub("", op) + f" {label}"
    if not PERMUTATION.search(name) or count < 2 or low is None or high is None or not isinstance(mean, (int, float)):
        return ""
    middle = (count - 1) / 2
    if low < 0 or high >= count or (low == 0 and high == count - 1 and abs(mean - middle) <= EXACT * middle):
        return ""
    return f"{label} is no permutation of {count}: from {low} to {high} with mean {mean:g} and not {middle:g}"
