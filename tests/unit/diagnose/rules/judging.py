"""One rule's findings on the last of some calls."""

from __future__ import annotations

from firstfault.diagnose import rules
from firstfault.diagnose.finding import Finding
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.record import schema
from tests.unit.read.samples import call, returned


def findings(rule: str, *calls: list[schema.Value], op: str = "op") -> list[Finding]:
    """What ``rule`` finds in the last of some calls of one operator, of which the others came back."""
    records: list[schema.Record] = []
    for n, args in enumerate(calls, 1):
        records += [call(n, op, *args), returned(n)]
    return judged(rule, *records[:-1])


def judged(rule: str, *records: schema.Record, n: int = 0, follow: bool = False) -> list[Finding]:
    """What ``rule`` finds in a call of a process, the last that was recorded if no number is given.

    ``follow`` what came of values that are not finite, as a report does.
    """
    history = History()
    for record in records:
        history.feed(Event("main", record))
    process = history.processes["main"]
    if follow:
        process.follow()
    wanted = n or max(record.n for record in records if isinstance(record, schema.Call))
    found = process.find(wanted)
    assert found is not None
    return [*rules.load(rule).check(rules.Suspect(found, history.earlier, process))]


def weights(rule: str, *calls: list[schema.Value]) -> list[tuple[str, list[str]]]:
    """The same in short: how much each weighs, and where."""
    return [(found.confidence.value, found.arguments) for found in findings(rule, *calls)]
