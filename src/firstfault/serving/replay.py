"""Saved requests, sent again as they came: with the same spacing, as streams or whole, so many at once.

    await replay(client, requests, Plan(speed=2.0, repeat=3))  →  Replay(outcomes=[Outcome(0, 0, Request(…)), …])

What comes back has the form of what is saved, so that both can be compared, and a replay can be replayed. What goes
wrong is a result like any other; only a server that never answered is an error.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstfault.record.requests import Request
from firstfault.serving.answers import LONGEST_ERROR, Answering
from firstfault.serving.client import MEBIBYTE, Answer, Client

MOST_BYTES = 256 * MEBIBYTE
"""Of one answer: logprobs of a long output are large."""
ALIVE_SECONDS = 10.0
NOT_SENT = "not sent: the server was gone"


@dataclass(frozen=True)
class Plan:
    """How requests are sent.

    Attributes:
        parallel: how many may be under way at once; None for as many as there were.
        speed: of the original spacing; None for no spacing at all.
        repeat: how many times all of them, one round after the other.
        ignore_eos: make each output as long as it was, whatever the model says.
        stream: whether answers come as streams; None for as they did.
        timeout: seconds for one request.
    """

    parallel: int | None = None
    speed: float | None = 1.0
    repeat: int = 1
    ignore_eos: bool = False
    stream: bool | None = None
    timeout: float = 300.0


@dataclass(frozen=True)
class Outcome:
    """What came of one request.

    Attributes:
        index: of the request among those that were sent, from 0.
        round: in which repetition, from 0.
        request: as it went this time.
    """

    index: int
    round: int
    request: Request


@dataclass
class Replay:
    """What came of all.

    Attributes:
        outcomes: of each request in each round, in the order in which they ended.
        alive: whether the server answered afterwards.
        seconds: how long it took.
        model: that stood in for the one that was asked for, where the server has only that one.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    alive: bool = True
    seconds: float = 0.0
    model: str = ""


class NoServer(Exception):
    """Nothing answered before anything was sent."""


Started = Callable[[], None]
Ended = Callable[[Outcome], None]


async def replay(
    client: Client,
    requests: Sequence[Request],
    plan: Plan,
    *,
    started: Started = lambda: None,
    ended: Ended = lambda outcome: None,
) -> Replay:
    """Send requests.

    Args:
        client: of the server; open.
        requests: in the order in which they came.
        plan: how.
        started: called once, when the first one has been sent.
        ended: called with each outcome.

    Raises:
        NoServer: no server answers.
    """
    if not await is_alive(client):
        raise NoServer
    run = _Run(client, requests, plan, started, ended)
    run.found.model = await _other_model(client, requests)
    began = time.monotonic()
    for number in range(plan.repeat):
        if run.gone:
            break
        await run.round(number)
    run.found.seconds = time.monotonic() - began
    run.found.alive = not run.gone and await is_alive(client)
    return run.found


async def is_alive(client: Client) -> bool:
    """Whether a server answers at all, be it with an error."""
    answer = await client.get("/health", timeout=ALIVE_SECONDS)
    if answer.status is None and answer.error == "TimeoutError":  # /health generates a token in some versions
        answer = await client.get("/v1/models", timeout=ALIVE_SECONDS)
    return answer.status is not None


class _Run:
    def __init__(self, client: Client, requests: Sequence[Request], plan: Plan, started: Started, ended: Ended) -> None:
        self.found = Replay()
        self.gone = False
        self._client = client
        self._requests = requests
        self._plan = plan
        self._started: Started | None = started
        self._ended = ended
        self._places = asyncio.Semaphore(plan.parallel or len(requests) or 1)

    async def round(self, number: int) -> None:
        """All requests once."""
        times = [request.t for request in self._requests if request.t is not None]
        first = min(times, default=0.0)
        speed = self._plan.speed
        due = [0.0 if speed is None or request.t is None else (request.t - first) / speed for request in self._requests]
        began = time.monotonic()
        await asyncio.gather(*(self._one(index, number, began + due[index]) for index in range(len(due))))

    async def _one(self, index: int, number: int, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        async with self._places:
            original = self._requests[index]
            if self.gone:
                sent = Request(original.path, original.body, original.id, state="unfinished", error=NOT_SENT)
            else:
                sent = await self._send(original)
                if sent.error and sent.status is None and not await is_alive(self._client):
                    self.gone = True
        outcome = Outcome(index, number, sent)
        self.found.outcomes.append(outcome)
        self._ended(outcome)

    async def _send(self, original: Request) -> Request:
        body = prepared(original, self._plan, self.found.model)
        streams = bool(body.get("stream"))
        answering = Answering(streams)
        sent = Request(original.path, body, original.id, t=time.time(), omitted=original.omitted)
        if self._started is not None:
            started, self._started = self._started, None
            asyncio.get_running_loop().call_soon(started)
        answer = await self._client.post(original.path, body, timeout=self._plan.timeout, on_chunk=answering.feed)
        return finished(sent, answer, answering)


def finished(sent: Request, answer: Answer, answering: Answering) -> Request:
    """A request with what came of it."""
    read = answering.end(answer.seconds, error=f"{answer.error}: {answer.message}" if answer.error else "")
    sent.output, sent.timing, sent.prompt_tokens = read.output, read.timing, read.prompt_tokens
    sent.status = read.status if read.status is not None and not answer.error else answer.status
    sent.error = read.error
    if answer.status is None or answer.error or not read.whole:
        sent.state = "unfinished"
        sent.error = sent.error or "the stream ended before its end"
    elif read.error or (sent.status or 0) >= 400:
        sent.state = "failed"
        sent.error = sent.error or _complaint(answer)
    return sent


def _complaint(answer: Answer) -> str:
    """What the body of an error says, in one line."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        body = None
    body = body if isinstance(body, dict) else {}
    inner = body.get("error")
    told = inner.get("message") if isinstance(inner, dict) else inner or body.get("message") or body.get("detail")
    text = told if isinstance(told, str) else answer.text
    return " ".join(text.split())[:LONGEST_ERROR] or f"status {answer.status}"


def prepared(original: Request, plan: Plan, model: str = "") -> dict[str, Any]:
    """The body that is sent for a request."""
    body = copy.deepcopy(original.body)
    if plan.stream is not None and original.path != "/encode":
        body["stream"] = plan.stream
    if model and "model" in body:
        body["model"] = model
    openai = original.path.startswith("/v1/")
    if body.get("stream") and openai:
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    elif openai:
        body.pop("stream_options", None)
    if plan.ignore_eos:
        _fix_length(original, body, openai)
    return body


def _fix_length(original: Request, body: dict[str, Any], openai: bool) -> None:
    sampling = body if openai else body.setdefault("sampling_params", {})
    if not isinstance(sampling, dict):
        return
    sampling["ignore_eos"] = True
    if original.output is not None and original.output.count and original.state == "finished":
        for name in ("max_tokens", "max_completion_tokens", "max_new_tokens"):
            sampling.pop(name, None)
        sampling["max_tokens" if openai else "max_new_tokens"] = original.output.count


async def _other_model(client: Client, requests: Sequence[Request]) -> str:
    """The one model that the server has, where requests ask for another; empty where they need not be changed."""
    asked = {request.body["model"] for request in requests if isinstance(request.body.get("model"), str)}
    if not asked:
        return ""
    answer = await client.get("/v1/models", timeout=ALIVE_SECONDS)
    known = served_models(answer)
    return known[0] if len(known) == 1 and asked - set(known) else ""


def served_models(answer: Answer) -> list[str]:
    """The names in an answer of ``/v1/models``."""
    try:
        listed = json.loads(answer.body)["data"]
        return [str(one["id"]) for one in listed]
    except (ValueError, KeyError, TypeError):
        return []
