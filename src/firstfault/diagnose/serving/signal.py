"""Signals: what stands out in a bundle, one conclusion each, with its evidence and a confidence."""

from __future__ import annotations

from enum import Enum

import msgspec

from firstfault.diagnose.finding import Confidence


class Problem(str, Enum):
    """The class of a service's problem."""

    STARTUP = "startup failure"
    DOWN = "server down"
    CRASH = "crash of a worker"
    OUT_OF_MEMORY = "out of memory"
    HANG = "hang or stall"
    TOO_LARGE = "request larger than capacity"
    THRASHING = "retraction or preemption storm"
    ADMISSION = "over-admission"
    CAPACITY = "KV or token-capacity pressure"
    QUEUEING = "queueing"
    TRANSFER = "PD transfer stuck"
    PREFILL = "prefill-side latency"
    DECODE = "decode-side latency"
    CACHE = "prefix-cache collapse"
    SPECULATION = "speculative decoding ineffective"
    IMBALANCE = "rank imbalance"
    DRIFT = "configuration drift"
    CLIENT = "waiting in the client"
    IDLE = "idle snapshot"
    NONE = "no problem seen"
    CANNOT_TELL = "could not tell"


class Signal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that stands out.

    Attributes:
        rule: the rule's code, as in ``FF912``.
        title: the rule's name in words.
        problem: the class that it is a sign of.
        confidence: how much it weighs.
        text: one sentence that says what was measured.
        guess: what is behind it, as far as can be inferred.
        evidence: the numbers it rests on, one sentence each.
        rules_out: what it speaks against.
        settles: what would settle it, in words.
        background: whether it may stand beside another problem without being it: an imbalance, a drift.
    """

    rule: str
    title: str
    problem: Problem
    confidence: Confidence
    text: str
    guess: str = ""
    evidence: list[str] = []
    rules_out: list[str] = []
    settles: str = ""
    background: bool = False


_ORDER = list(Problem)


def ranked(signals: list[Signal]) -> list[Signal]:
    """The weightiest first; of the same weight those that explain the others before those that go with many."""
    weights = list(Confidence)
    return sorted(signals, key=lambda one: (weights.index(one.confidence), one.background, _ORDER.index(one.problem)))
