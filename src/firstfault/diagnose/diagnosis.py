"""What a failure comes to: its class, the call that failed, the one that made it fail, and the next command.

Diagnosis(kind="illegal access", culprit_op="moe_align", culprit=6, origin_op="topk_gating", origin=5, …)
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from firstfault.diagnose import commands, complaints
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.read.calls import Call
from firstfault.read.formats.complaint import Complaint


class Diagnosis(msgspec.Struct, omit_defaults=True):
    """The answer for machines.

    Attributes:
        kind: the class of fault.
        confidence: how sure that is.
        rule: of the finding that it follows from.
        culprit, culprit_op: the call that failed, 0 and empty where it could not be told; the operator alone is the
            kernel where no calls were recorded.
        origin, origin_op: the call that made what it failed on; 0 where that could not be told.
        text: one sentence.
        command: the next step to be typed.
    """

    kind: Kind
    confidence: Confidence
    rule: str = ""
    culprit: int = 0
    culprit_op: str = ""
    origin: int = 0
    origin_op: str = ""
    text: str = ""
    command: str = ""


def of_findings(findings: Sequence[Finding], suspect: Call | None, device_said: str | None = None) -> Diagnosis | None:
    """What the findings in a process come to, the weightiest first; None where nothing is wrong in it.

    Args:
        findings: ranked.
        suspect: the call to look at.
        device_said: of a call that failed on the device, which raised nothing itself: what was said of that elsewhere.
    """
    found = next((finding for finding in findings if finding.confidence is not Confidence.LOW), None)
    if found is None:
        return _of_suspect(suspect, device_said) if suspect is not None else None
    caused = found.verdict is Verdict.CAUSE
    culprit = (found.call, found.op) if suspect is None else (suspect.n, suspect.op)
    if any(finding.verdict is Verdict.CANNOT_TELL for finding in findings):  # where it surfaced is not where it failed
        culprit = (found.call, found.op) if found.confidence is Confidence.HIGH else (0, "")
    return Diagnosis(
        found.kind,
        found.confidence,
        found.rule,
        *culprit,
        found.call if caused else found.origin,
        found.op if caused else found.origin_op,
        found.text,
        found.command,
    )


def _of_suspect(suspect: Call, device_said: str | None) -> Diagnosis:
    """Where a process was when it failed, and the class of what it raised, or was said of its device."""
    kind = complaints.kind_of_message(f"{suspect.exception}: {suspect.message}")
    if kind is Kind.UNKNOWN and device_said is not None:
        said = complaints.kind_of_message(device_said)
        kind = Kind.ILLEGAL_ACCESS if said is Kind.UNKNOWN else said
    sure = Confidence.LOW if kind is Kind.UNKNOWN else Confidence.MEDIUM
    return Diagnosis(kind, sure, culprit=suspect.n, culprit_op=suspect.op)


def of_complaints(told: Sequence[Complaint]) -> Diagnosis | None:
    """What complaints come to where no calls were recorded."""
    if not told:
        return None
    seen = complaints.witness(told)
    first = seen or told[0]
    return Diagnosis(
        complaints.kind_of(first),
        Confidence.HIGH if seen else Confidence.MEDIUM,
        culprit_op=seen.kernel if seen else "",
        text=complaints.sentence(first),
        command=commands.record(level=5),
    )
