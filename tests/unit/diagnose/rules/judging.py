"""One rule's findings on the last of some calls."""

from __future__ import annotations

from firstfault.diagnose import rules
from firstfault.diagnose.finding import Finding
from firstfault.read.calls import Call
from firstfault.read.earlier import Earlier
from firstfault.record import schema
from tests.unit.read.samples import call


def findings(rule: str, *calls: list[schema.Value]) -> list[Finding]:
    """What ``rule`` finds in the last of some calls of one operator, of which the others came back."""
    known = Earlier()
    for n, args in enumerate(calls[:-1], 1):
        known.learn(call(n, "op", *args))
    suspect = rules.Suspect(Call("main", call(len(calls), "op", *calls[-1])), known)
    return [*rules.load(rule).check(suspect)]


def weights(rule: str, *calls: list[schema.Value]) -> list[tuple[str, list[str]]]:
    """The same in short: how much each weighs, and where."""
    return [(found.confidence.value, found.arguments) for found in findings(rule, *calls)]
