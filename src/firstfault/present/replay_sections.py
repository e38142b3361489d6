"""A replay → a conclusion and sections.

REPRODUCED: 1 of 1 requests that had not finished did so again, and the server is gone (ConnectionResetError).
"""

from __future__ import annotations

from firstfault.present.request_sections import seconds
from firstfault.present.sections import NEXT, Code, Label, Line, Section
from firstfault.read.request_summary import Spread
from firstfault.replay.replayed import Answer, Row
from firstfault.replay.symptoms import Metric

MOST_ROWS = 20


def sections(answer: Answer) -> list[Section]:
    """What the conclusion rests on, and what to type next."""
    told = [Section("Replay", _facts(answer))]
    if answer.shrunk is not None:
        told.append(Section("Shrunk", [(answer.shrunk.text,)]))
    if answer.times:
        rows: list[Line] = []
        for name, times in answer.times.items():
            for which, one in (("original", times.original), ("now", times.now)):
                if one is not None:
                    rows.append((Metric(name).words, which, *_spread(one)))
        told.append(Section("Times", columns=["", "", "requests", "least", "median", "p90", "most"], rows=rows))
    shown = sorted(answer.rows, key=lambda row: row.state == "finished")[:MOST_ROWS]
    more = len(answer.rows) - len(shown)
    lines: list[Line] = [(f"and {more} more; --json has them all",)] if more else []
    columns = ["id", "was", "now", "status", "first token", "it was", "end", "it was", "error"]
    told.append(Section("Requests", lines, columns, [_row(row) for row in shown]))
    if answer.next:
        told.append(Section(NEXT, [(f"{what}: ", Code(command)) for what, command in answer.next]))
    return told


def _facts(answer: Answer) -> list[Line]:
    rounds = f" in {answer.rounds} rounds" if answer.rounds > 1 else ""
    facts: list[Line] = [(Label("sent"), f"{answer.sent} requests{rounds} in {seconds(answer.seconds)}")]
    facts.append((Label("after"), "the server answers" if answer.alive else "the server does not answer any more"))
    facts += [(Label(check.symptom.value), f"{check.verdict.value}: {check.text}") for check in answer.checks]
    facts.append((Label("test"), answer.test))
    facts += [(Label("note"), note) for note in answer.notes]
    if answer.bundle:
        facts.append((Label("bundle"), Code(answer.bundle)))
    return facts


def _spread(one: Spread) -> tuple[str, ...]:
    return (str(one.count), *map(seconds, (one.least, one.median, one.p90, one.most)))


def _row(row: Row) -> Line:
    status = "-" if row.status is None else str(row.status)
    times = map(seconds, (row.ttft, row.original_ttft, row.e2e, row.original_e2e))
    return (row.id or "-", row.was, row.state, status, *times, row.error[:80])
