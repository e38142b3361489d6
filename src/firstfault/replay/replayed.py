"""What a replay answers, for people and for machines.

{"version":1,"verdict":"REPRODUCED","conclusion":"REPRODUCED: 1 of 1 requests that had not finished …","times":{…}}
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from firstfault.read.request_summary import Spread, spread
from firstfault.record.requests import Request, Timing
from firstfault.replay.incident import Check, Judged, Verdict
from firstfault.replay.symptoms import Metric
from firstfault.serving.replay import Replay


class Times(msgspec.Struct):
    """One kind of time in seconds, as it was and as it is."""

    original: Spread | None
    now: Spread | None


class Row(msgspec.Struct):
    """One request in one round; times in seconds."""

    id: str
    round: int
    was: str
    state: str
    status: int | None
    error: str
    ttft: float | None
    e2e: float | None
    original_ttft: float | None
    original_e2e: float | None


class Shrunk(msgspec.Struct):
    """What is left of requests that bring an incident back.

    Attributes:
        requests, of: how many are left of how many.
        prompt: how long the prompt of the one that was shortened is; None where none was.
        unit: of that, ``tokens`` or ``characters``.
        attempts: how many replays it took.
        monotone: whether all longer prompts that were tried bring it back, and no shorter one.
        text: one sentence.
        file: where they are.
    """

    requests: int
    of: int
    prompt: int | None
    original_prompt: int | None
    unit: str
    attempts: int
    monotone: bool | None
    text: str
    file: str = ""


class Answer(msgspec.Struct):
    """The whole answer.

    Attributes:
        sent: how many requests were sent, in all rounds.
        rounds: how many.
        seconds: how long it took.
        alive: whether the server answered afterwards.
        model: that stood in for the one that was asked for.
        times: by kind, as they were and as they are.
        rows: each request.
        bundle: the folder of the bundle that was taken meanwhile.
        shrunk: what is left of the requests.
        notes: what else is to be known.
        next: what to do, as sentence and command.
    """

    verdict: Verdict
    conclusion: str
    checks: list[Check]
    test: str
    sent: int
    rounds: int
    seconds: float
    alive: bool
    model: str
    times: dict[str, Times]
    rows: list[Row]
    bundle: str = ""
    shrunk: Shrunk | None = None
    notes: list[str] = []
    next: list[tuple[str, str]] = []
    version: int = 1


def answer(originals: Sequence[Request], done: Replay, judged: Judged) -> Answer:
    """Sum a replay up."""
    outcomes = sorted(done.outcomes, key=lambda outcome: (outcome.round, outcome.index))
    rows = []
    for outcome in outcomes:
        was, now = originals[outcome.index], outcome.request
        old, new = was.timing or Timing(), now.timing or Timing()
        rows.append(
            Row(
                was.id, outcome.round, was.state, now.state, now.status, now.error,
                new.ttft, new.e2e, old.ttft, old.e2e,
            )
        )  # fmt: skip
    return Answer(
        judged.verdict,
        judged.conclusion,
        judged.checks,
        judged.test,
        sent=len(outcomes),
        rounds=len({outcome.round for outcome in outcomes}),
        seconds=done.seconds,
        alive=done.alive,
        model=done.model,
        times=_times(originals, [outcome.request for outcome in outcomes]),
        rows=rows,
        notes=_notes(originals, done),
    )


def _times(originals: Sequence[Request], now: Sequence[Request]) -> dict[str, Times]:
    found = {}
    for metric in Metric:
        times = Times(_spread(originals, metric), _spread(now, metric))
        if times.original or times.now:
            found[metric.value] = times
    return found


def _spread(requests: Sequence[Request], metric: Metric) -> Spread | None:
    given = [getattr(request.timing or Timing(), metric.value) for request in requests if request.state == "finished"]
    values = [value for value in given if value is not None]
    return spread(values) if values else None


def _notes(originals: Sequence[Request], done: Replay) -> list[str]:
    notes = []
    omitted = sorted({name for request in originals for name in request.omitted})
    if omitted:
        count = sum(bool(request.omitted) for request in originals)
        notes.append(f"{count} requests were sent without {', '.join(omitted)}, which the saved ones do not have")
    if done.model:
        notes.append(f"the server has only the model {done.model}, which was asked in place of the recorded one")
    return notes
