"""Saved requests in numbers: what was asked, what came of it, how long it took.

    summarize(loaded)  →  Summary(count=25, states={"unfinished": 8, "finished": 17}, peak=12, …)

Prompts and outputs are not in it, only how long they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

import msgspec

from firstfault.read.requests import Loaded
from firstfault.record.requests import Opening, Request, State

ORDER: tuple[State, ...] = get_args(State)
"""States, as they are shown."""


class Spread(msgspec.Struct):
    """Of some numbers: how many, and what part of them is how large (the nearest rank)."""

    count: int
    least: float
    median: float
    p90: float
    most: float


class Row(msgspec.Struct):
    """One request; times in seconds, and ``at`` from the first one's arrival."""

    id: str
    state: State
    path: str
    at: float | None
    prompt_tokens: int | None
    prompt_characters: int
    output_tokens: int | None
    ttft: float | None
    e2e: float | None
    greedy: bool
    error: str
    omitted: list[str]


class Summary(msgspec.Struct):
    """What some files of requests hold.

    Attributes:
        opening: where they come from.
        count: how many requests.
        states: how many of each state, the worst first.
        paths: how many to each endpoint.
        health_checks: how many requests of the server to itself are left out.
        seconds: from the first arrival to the last; None where times are not known.
        peak: how many were under way at once, at most.
        greedy: how many must be answered the same each time: temperature 0.
        omitted: how many requests had each of the fields that were left out.
        spreads: of prompt and output tokens, time to first token, between tokens, to the end.
        requests: one by one, those that an incident is about first.
        problems: what could not be read.
        version: of this answer's form.
    """

    opening: Opening
    count: int
    states: dict[str, int]
    paths: dict[str, int]
    health_checks: int
    seconds: float | None
    peak: int
    greedy: int
    omitted: dict[str, int]
    spreads: dict[str, Spread]
    requests: list[Row]
    problems: list[str]
    version: int = 1


def summarize(loaded: Loaded) -> Summary:
    """Sum up requests."""
    requests = loaded.requests
    times = [request.t for request in requests if request.t is not None]
    states = Counter(request.state for request in requests)
    rows = [_row(request, min(times, default=0.0)) for request in requests]
    return Summary(
        opening=loaded.opening,
        count=len(requests),
        states={state: states[state] for state in ORDER if states[state]},
        paths=dict(Counter(request.path for request in requests)),
        health_checks=loaded.health_checks,
        seconds=max(times) - min(times) if times else None,
        peak=_peak(requests),
        greedy=sum(row.greedy for row in rows),
        omitted=dict(Counter(name for request in requests for name in request.omitted)),
        spreads=_spreads(requests),
        requests=sorted(rows, key=lambda row: ORDER.index(row.state)),
        problems=loaded.problems,
    )


def _row(request: Request, first: float) -> Row:
    output, timing = request.output, request.timing
    return Row(
        id=request.id,
        state=request.state,
        path=request.path,
        at=None if request.t is None else request.t - first,
        prompt_tokens=request.prompt_tokens,
        prompt_characters=prompt_characters(request.body),
        output_tokens=output.count if output else None,
        ttft=timing.ttft if timing else None,
        e2e=timing.e2e if timing else None,
        greedy=is_greedy(request.body),
        error=request.error,
        omitted=request.omitted,
    )


def is_greedy(body: dict[str, object]) -> bool:
    """Whether a request has to be answered the same each time, as far as the sampling goes."""
    inner = body.get("sampling_params")
    sampling = inner if isinstance(inner, dict) else body
    temperature = sampling.get("temperature")
    return (isinstance(temperature, (int, float)) and temperature == 0) or sampling.get("top_k") == 1


def prompt_characters(body: dict[str, object]) -> int:
    """How long the texts of a request's prompt are, all of them together."""
    return sum(len(text) for name in ("text", "prompt", "messages", "input") for text in _texts(body.get(name), name))


def _texts(value: object, name: str, depth: int = 0) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < 5:
        for item in value:
            yield from _texts(item, name, depth + 1)
    elif isinstance(value, dict) and depth < 5:
        for key in ("content", "text"):
            yield from _texts(value.get(key), name, depth + 1)


def _peak(requests: Sequence[Request]) -> int:
    """How many were under way at once; those that end at a time are gone for those that arrive then."""
    changes = []
    for request in requests:
        took = request.timing.e2e if request.timing else None
        if request.t is not None and took is not None:
            changes += [(request.t, 1), (request.t + took, -1)]
    under_way = most = 0
    for _, change in sorted(changes):
        under_way += change
        most = max(most, under_way)
    return most


def _spreads(requests: Sequence[Request]) -> dict[str, Spread]:
    measured: dict[str, Callable[[Request], float | None]] = {
        "prompt tokens": lambda request: request.prompt_tokens,
        "output tokens": lambda request: request.output.count if request.output else None,
        "time to first token": lambda request: request.timing.ttft if request.timing else None,
        "between tokens": lambda request: request.timing.itl if request.timing else None,
        "to the end": lambda request: request.timing.e2e if request.timing else None,
    }
    found = {}
    for name, measure in measured.items():
        values = [value for request in requests if (value := measure(request)) is not None]
        if values:
            found[name] = spread(values)
    return found


def spread(values: Iterable[float]) -> Spread:
    """Sum numbers up; there must be some."""
    ordered = sorted(values)

    def rank(part: float) -> float:
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)]

    return Spread(len(ordered), ordered[0], rank(0.5), rank(0.9), ordered[-1])
