"""Findings: one conclusion each, with its evidence, a confidence, and a next step."""

from __future__ import annotations

from enum import Enum

import msgspec


class Confidence(str, Enum):
    """How much a finding weighs; findings are shown in this order."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Verdict(str, Enum):
    """What a finding says of the fault."""

    CAUSE = "cause"
    """The call it is about made it."""
    UPSTREAM = "came from upstream"
    """The call it is about was given it, by the call that is named as the origin."""
    OUTSIDE = "came from outside the record"
    """The call it is about was the first to be given it, and no recorded call made it."""
    SUSPICIOUS = "suspicious"
    """It goes with such faults; whether it made this one is not known."""
    CANNOT_TELL = "could not tell"


class Kind(str, Enum):
    """The class of fault that a finding is evidence of."""

    ILLEGAL_ACCESS = "illegal access"
    NOT_A_NUMBER = "NaN, infinity or garbage"
    MISMATCH = "shape, dtype, stride or device mismatch"
    OUT_OF_MEMORY = "out of memory"
    HANG = "hang or divergence of ranks"
    LATENCY = "latency"
    PRECISION = "precision"
    GRAPH = "CUDA graph only"
    UNKNOWN = "not known"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something suspicious in one call.

    Attributes:
        rule: the rule's code, as in ``FF201``.
        title: the rule's name in words.
        confidence: how much it weighs.
        call: number of the call.
        op: its operator.
        arguments: where in the call it was seen.
        text: one sentence that says what was measured.
        next_step: what would settle it.
        kind: the class of fault that it is evidence of.
        verdict: what it says of the fault.
        command: the next step to be typed, where one command does it.
        evidence: what it rests on, one sentence each, with the numbers of calls.
        rules_out: what it speaks against.
        origin, origin_op: the call that made what was seen, 0 where that is not known.
        maker, maker_op: the call that made it, where the origin is further up: the one that made what that was given.
    """

    rule: str
    title: str
    confidence: Confidence
    call: int
    op: str
    arguments: list[str]
    text: str
    next_step: str
    kind: Kind = Kind.UNKNOWN
    verdict: Verdict = Verdict.SUSPICIOUS
    command: str = ""
    evidence: list[str] = []
    rules_out: str = ""
    origin: int = 0
    origin_op: str = ""
    maker: int = 0
    maker_op: str = ""


def ranked(findings: list[Finding]) -> list[Finding]:
    """The weightiest first; of the same weight, those that know what made it before those that only suspect."""
    weights, open_ones = list(Confidence), (Verdict.SUSPICIOUS, Verdict.CANNOT_TELL)
    return sorted(findings, key=lambda finding: (weights.index(finding.confidence), finding.verdict in open_ones))
