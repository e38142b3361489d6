"""Findings: one conclusion each, with its evidence, a confidence, and a next step."""

from __future__ import annotations

from enum import Enum

import msgspec


class Confidence(str, Enum):
    """How much a finding weighs; findings are shown in this order."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


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
    """

    rule: str
    title: str
    confidence: Confidence
    call: int
    op: str
    arguments: list[str]
    text: str
    next_step: str


def ranked(findings: list[Finding]) -> list[Finding]:
    """The weightiest first."""
    order = list(Confidence)
    return sorted(findings, key=lambda finding: order.index(finding.confidence))
