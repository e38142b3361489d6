"""A comparison of two runs → what it comes to: the class of the fault, the call that made it, the next command.

Diagnosis(kind="precision", culprit_op="extend_attention", culprit=1, origin_op="extend_attention", …)
"""

from __future__ import annotations

import shlex
from statistics import median

from firstfault.diagnose import commands, complaints
from firstfault.diagnose.compared import Comparison, Pair, Slower, Unused
from firstfault.diagnose.diagnosis import Diagnosis
from firstfault.diagnose.finding import Confidence, Kind
from firstfault.diagnose.numerics import NUMERICS
from firstfault.read.calls import Call, State

WARM_UP = 2
"""First calls of an operator that are left out: they compile and allocate."""
ENOUGH_CALLS = 3
MOST_TIMES = 2000
TIMES = 2.0
"""How many times longer calls of one operator take for it to be told."""
WORTH_OF_ALL = 0.1
"""What part of the time of all calls an operator must have lost."""
WORTH = 2_000_000
"""Nanoseconds that it must have lost in all."""
TF32 = 2.0**-11
MOST_OPERATORS = 20_000
MOST_SLOWER = 5


class Times:
    """How long the calls of each operator took on both sides."""

    def __init__(self) -> None:
        self._every: dict[str, tuple[list[int], list[int]]] = {}
        self._seen: dict[str, int] = {}

    def take(self, left: Call, right: Call) -> None:
        """Take in a call that both have."""
        self._seen[left.op] = seen = self._seen.get(left.op, 0) + 1
        if seen <= WARM_UP or len(self._every) >= MOST_OPERATORS or not (left.duration and right.duration):
            return
        pair = self._every.setdefault(left.op, ([], []))
        if len(pair[0]) < MOST_TIMES:
            pair[0].append(max(left.duration - left.inside, 0))
            pair[1].append(max(right.duration - right.inside, 0))

    def slower(self) -> list[Slower]:
        """The operators that lost most, those first."""
        total = sum(sum(left) for left, _ in self._every.values())
        found: list[tuple[float, Slower]] = []
        for op, (left, right) in self._every.items():
            if len(left) < ENOUGH_CALLS:
                continue
            usual, now = median(left), median(right)
            lost = (now - usual) * len(left)
            if now >= TIMES * usual and lost >= max(WORTH, WORTH_OF_ALL * total):
                found.append((lost, Slower(op, len(left), int(usual), int(now))))
        found.sort(key=lambda item: -item[0])
        return [slower for _, slower in found[:MOST_SLOWER]]


def diagnosed(found: Comparison) -> Diagnosis | None:
    """What a comparison comes to; None where nothing is to be blamed."""
    if found.first is not None:
        return _of_first(found, found.first)
    if found.given is not None:
        return _of_given(found.given) or (_of_unused(found.unused[0]) if found.unused else None)
    if found.slower and not found.only:
        slower = found.slower[0]
        command = commands.slowest_calls(found.right.source, slower.op)
        text = f"{slower.in_words}, and gives the same"
        return Diagnosis(Kind.LATENCY, Confidence.MEDIUM, "", 0, slower.op, 0, slower.op, text, command)
    return None


def _of_first(found: Comparison, first: Pair) -> Diagnosis:
    """The first call that was given the same and gave something else."""
    before = found.given is not None and found.given.order < first.order
    sure = Confidence.MEDIUM if before else Confidence.HIGH
    told = Diagnosis(_kind(first), sure, "", first.right, first.op, first.right, first.op)
    told.text = f"{first.op} was given the same on both sides and gave something else"
    told.command = commands.record(level=10)
    if first.layouts:
        layout = first.layouts[0]
        told.kind, told.origin, told.origin_op = Kind.MISMATCH, first.origin, first.origin_op
        told.text += f", though with another {layout.what} of {layout.name}: {layout.left} | {layout.right}"
        side = f" --process {shlex.quote(found.right.process)}" if found.right.process else ""
        told.command = f"firstfault trace {shlex.quote(found.right.source)} --call {first.right}{side}"
    elif (variable := _numeric_variable(found)) is not None and told.kind is Kind.PRECISION:
        name, left, right = variable
        told.origin, told.origin_op = 0, ""
        told.text += f", and {name} is not the same in their environments ({left or 'not set'} | {right or 'not set'})"
        told.command = commands.record(level=5, env=f"env -u {name}")
    elif told.kind is Kind.PRECISION and _like_tf32(first):
        told.text += f"; they are about {first.relative:.1g} apart, as rounding to TF32 (2⁻¹¹) makes them"
    return told


def _kind(first: Pair) -> Kind:
    """The class of what differs in what a call gave."""
    whats = {difference.what for difference in first.differences}
    if "end" in whats:
        return complaints.kind_of_message(first.raised) if first.raised else Kind.UNKNOWN
    if whats & {"shape", "dtype", "structure", "type"}:
        return Kind.MISMATCH
    return Kind.NOT_A_NUMBER if whats & {"NaN", "Inf"} else Kind.PRECISION


def _numeric_variable(found: Comparison) -> tuple[str, str, str] | None:
    """A variable that rounding depends on, and that is not the same on both sides."""
    for change in found.environment:
        name = change.name.removeprefix("environment.")
        if name in NUMERICS:
            return name, change.left, change.right
    return None


def _like_tf32(first: Pair) -> bool:
    return first.single and TF32 / 64 <= first.relative <= TF32 * 4


def _of_given(given: Pair) -> Diagnosis | None:
    """A call that was given something else by one that gave nothing which could be compared: it wrote in place."""
    if not given.origin:
        return None
    names = ", ".join(dict.fromkeys(difference.name for difference in given.differences))
    whats = {difference.what for difference in given.differences}
    return Diagnosis(
        Kind.NOT_A_NUMBER if whats & {"NaN", "Inf"} else Kind.PRECISION,
        Confidence.MEDIUM,
        "",
        given.origin,
        given.origin_op,
        given.origin,
        given.origin_op,
        f"{given.origin_op} (call {given.origin}) wrote {names} of {given.op} in place, and it is not the same, though "
        "all that was given to calls before was",
        commands.record(level=10),
    )


def _of_unused(unused: Unused) -> Diagnosis:
    return Diagnosis(
        Kind.PRECISION,
        Confidence.MEDIUM,
        "",
        unused.call,
        unused.op,
        unused.call,
        unused.op,
        f"{unused.op} was given another {unused.name} on each side ({unused.left} | {unused.right}) and gave the same "
        f"in {unused.pairs} calls: it may not use it",
        commands.record(level=10),
    )


def raised(left: Call, right: Call) -> str:
    """What the side that raised said."""
    call = right if right.state is State.RAISED else left
    return f"{call.exception}: {call.message}" if call.state is State.RAISED else ""
