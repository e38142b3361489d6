"""Which one call upstream made what the culprit failed on: the first whose inputs are good and whose output is bad.

    moe_align (call 9)   arg[0] holds expert ids up to 1073741860, beyond 128
      topk_gating (call 5)   inputs good, output bad: by contract                       ← blamed

A producer is held against its reference, by a replay that is done for us, or against what its results and arguments
have to be. One that does what its reference does is cleared, and what it was given is looked at in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import msgspec

from firstfault.diagnose import contracts
from firstfault.read.calls import Call
from firstfault.read.process import Process
from firstfault.read.producers import Link
from firstfault.read.tensors import not_finite, whole
from firstfault.record import schema
from firstfault.replay.verdict import Replayed, Verdict

MOST_PRODUCERS = 64
_ALLOCATES = re.compile(r"(?:^|\.)(?:new_)?(?:empty|resize)(?:_like|_strided|_permuted|_quantized|_)?(?:\.\w+)?$")
"""Operators whose result is memory as it lies: whatever it holds is nobody's value."""

Judge = Callable[[Call], "Replayed | None"]
"""Holds a call against its reference; None where its dump is not there."""
Complete = Callable[[Call], None]
"""Adds the statistics that only a call's dump can tell."""
Shows = Callable[[schema.Tensor], "bool | None"]


class Held(str, Enum):
    """What is known of one side of a call."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "not known"


class Producer(msgspec.Struct, omit_defaults=True):
    """One call that was looked at.

    Attributes:
        call, op, site: which.
        depth: how many calls it is away from the culprit.
        gave_to: the call and argument that its result went into.
        inputs, output: what is known of them.
        by: what says so of the output: ``reference``, ``values``.
        text: why, in words.
    """

    call: int
    op: str
    depth: int
    gave_to: str
    inputs: Held = Held.UNKNOWN
    output: Held = Held.UNKNOWN
    by: str = ""
    text: str = ""
    site: str = ""


class Blame(msgspec.Struct):
    """The answer.

    Attributes:
        culprit, culprit_op, argument: where the walk began.
        bad: what is wrong with that argument.
        blamed, blamed_op: the call that made it; 0 and empty where that could not be told.
        text: one sentence.
        producers: the calls that were looked at, the nearest first.
        next: the command to type next.
        problems: what could not be read.
    """

    culprit: int
    culprit_op: str
    argument: str
    bad: str
    version: int = 1
    blamed: int = 0
    blamed_op: str = ""
    text: str = ""
    producers: list[Producer] = []
    next: str = ""
    problems: list[str] = []


def blame(process: Process, culprit: Call, argument: str, judge: Judge, complete: Complete) -> Blame:
    """Walk upstream from an argument, and judge each producer, until one is to blame.

    Args:
        process: whose calls these are.
        culprit: the call that failed.
        argument: what it failed on.
        judge, complete: from outside: to replay calls and to read their dumps is not done here.
    """
    complete(culprit)
    shows, bad = _property(culprit, argument)
    found = Blame(culprit.n, culprit.op, argument, bad)
    seen = {culprit.n}
    waiting = [(1, culprit, argument)]
    unwritten = []
    while waiting and len(found.producers) < MOST_PRODUCERS:
        depth, at, label = waiting.pop(0)
        links = list(at.links.get(label, ()))
        if not links:
            unwritten.append(f"{label} of {at.op} (call {at.n})")
        for link in links:
            writer = process.find(link.writer.n)
            if link.writer.n in seen:
                continue
            seen.add(link.writer.n)
            producer = Producer(link.writer.n, link.writer.op, depth, f"{label} of {at.op} (call {at.n})")
            found.producers.append(producer)
            if writer is None or writer.record.args is None:
                producer.text = "it is further back than what is kept of the record"
                continue
            further = _look(producer, writer, dict(at.given).get(label), link, shows, judge, complete)
            if _is_to_blame(producer):
                return _conclude(found, producer)
            waiting += [(depth + 1, writer, name) for name in further]
    return _give_up(found, unwritten)


def _property(culprit: Call, argument: str) -> tuple[Shows, str]:
    """What is wrong with the argument, as a question to ask of other tensors, and in words."""
    tensor = dict(culprit.given).get(argument)
    use = next((use for use in contracts.uses(culprit) if use.label == argument), None)
    if tensor is None:
        return (lambda given: None), "is no tensor"
    if use is not None and _outside(use, tensor):
        bound = f"{use.bound.limit}, {use.bound.of}"
        words = f"holds {use.what} from {tensor.min} to {tensor.max}, and they must be below {bound}"
        return (lambda given: _outside(use, given) if contracts.is_integer(given) else _bad(given)), words
    if not_finite(tensor):
        return _bad, f"holds {tensor.nan_count or 0:,} NaN and {tensor.inf_count or 0:,} infinities"
    return (lambda given: _bad(given) or None), "shows nothing that is known to be wrong"


def _outside(use: contracts.Use, tensor: schema.Tensor) -> bool | None:
    """Whether a tensor holds what indexes nothing; None where that was not measured."""
    if whole(tensor.min) is None or whole(tensor.max) is None:
        return None
    return use.outside(tensor) is not None


def _bad(tensor: schema.Tensor) -> bool | None:
    """Whether a tensor holds what is no number; None where that was not measured."""
    if tensor.nan_count is None and tensor.min is None:
        return None
    return not_finite(tensor)


def _look(
    producer: Producer,
    writer: Call,
    written: schema.Tensor | None,
    link: Link,
    shows: Shows,
    judge: Judge,
    complete: Complete,
) -> list[str]:
    """Judge one producer; the arguments of it that are to be looked at next."""
    complete(writer)
    producer.site = writer.record.site
    bad_inputs, unknown = _inputs(writer)
    producer.inputs = Held.BAD if bad_inputs else Held.UNKNOWN if unknown else Held.GOOD
    gave = link.gave if link.gave is not None else written
    shown = shows(gave) if gave is not None and not _ALLOCATES.search(writer.op) else None
    producer.output = Held.UNKNOWN if shown is None else Held.BAD if shown else Held.GOOD
    producer.by, producer.text = ("values", _in_words(shown)) if shown is not None else ("", "")
    replayed = judge(writer)
    if replayed is not None:
        _take(producer, replayed)
    every = [label for label, _ in writer.given]
    return bad_inputs or every


def _inputs(call: Call) -> tuple[list[str], bool]:
    """The arguments of a call that are bad, and whether it is unknown of any."""
    bounds = {use.label: use for use in contracts.uses(call)}
    bad, unknown = [], False
    for label, tensor in call.given:
        use = bounds.get(label)
        told = _outside(use, tensor) if use is not None else _bad(tensor)
        unknown = unknown or (told is None and 0 not in tensor.shape)
        if told:
            bad.append(label)
    return bad, unknown


def _take(producer: Producer, replayed: Replayed) -> None:
    """What a replay against the reference says of a producer."""
    if replayed.verdict in (Verdict.MISMATCH, Verdict.CRASHED):
        producer.output, producer.by = Held.BAD, "reference"
        producer.text = f"against {replayed.against}: {replayed.text}"
    elif replayed.verdict is Verdict.MATCH and replayed.independent:
        producer.output, producer.by = Held.GOOD, "reference"
        producer.text = f"it does what {replayed.against} does with what it was given"
    else:
        alone = f"it was held against {replayed.against} alone"
        why = alone if replayed.verdict is Verdict.MATCH else replayed.text
        producer.text = "; ".join(filter(None, (producer.text, why)))


def _in_words(shown: bool) -> str:
    return "its result has what is wrong" if shown else "its result does not have it"


def _is_to_blame(producer: Producer) -> bool:
    """By its reference whatever it was given, else where its inputs are known to be good."""
    if producer.output is not Held.BAD:
        return False
    return producer.by == "reference" or producer.inputs is Held.GOOD


def _conclude(found: Blame, producer: Producer) -> Blame:
    found.blamed, found.blamed_op = producer.call, producer.op
    given = {Held.GOOD: "good inputs", Held.BAD: "bad inputs", Held.UNKNOWN: "inputs of which no values are known"}
    found.text = (
        f"{producer.op} (call {producer.call}) made it: of {given[producer.inputs]} it gave a bad result, "
        f"by its {producer.by}"
    )
    return found


def _give_up(found: Blame, unwritten: list[str]) -> Blame:
    """Nobody is to blame, or it cannot be told."""
    cleared = [one for one in found.producers if one.output is Held.GOOD and one.by == "reference"]
    if found.producers and len(cleared) == len(found.producers):
        found.text = "every recorded producer does what its reference does"
        if unwritten:
            found.text += f"; no recorded call wrote {', '.join(unwritten[:4])}"
    elif not found.producers:
        found.text = f"no recorded call wrote {', '.join(unwritten[:4]) or found.argument}"
    else:
        found.text = "of none of the producers it is known that its inputs were good and its output bad"
    return found
