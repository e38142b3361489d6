"""Requests are sent as they came; whatever the server does is a result."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from firstfault.record.requests import Output, Request, Timing
from firstfault.serving.client import Client
from firstfault.serving.replay import NOT_SENT, NoServer, Plan, Replay, prepared, replay
from firstfault.serving.tokens import tokenized
from tests.unit.serving.fake_engine import FakeEngine


def ask(words: int, t: float | None = None, path: str = "/generate", **body: Any) -> Request:
    prompt = "prompt" if path == "/v1/completions" else "text"
    return Request(path, {prompt: "w " * words, **body}, id=f"{words}", t=t)


def run(engine: httpx.AsyncBaseTransport, requests: list[Request], plan: Plan = Plan(), **chosen: Any) -> Replay:  # noqa: B008
    async def go() -> Replay:
        async with Client("http://engine:30000", transport=engine) as client:
            return await replay(client, requests, plan, **chosen)

    return asyncio.run(go())


def sent(done: Replay) -> list[Request]:
    return [outcome.request for outcome in sorted(done.outcomes, key=lambda one: (one.round, one.index))]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_answers_are_read_and_timed(path: str, stream: bool) -> None:
    [request] = sent(run(FakeEngine(), [ask(3, path=path, stream=stream)]))
    assert (request.state, request.status, request.error) == ("finished", 200, "")
    assert request.output is not None
    assert request.timing is not None
    assert (request.output.text, request.output.finish) == ("a b c", "length")
    assert (request.timing.ttft is not None) == stream
    assert request.timing.e2e is not None


def test_the_spacing_is_the_original_times_the_speed() -> None:
    engine = FakeEngine()
    requests = [ask(1, t=100.0), ask(2, t=100.4), ask(3, t=None)]
    assert run(engine, requests, Plan(speed=2.0)).seconds >= 0.2
    assert [body["text"].count("w") for _, body in engine.seen] == [1, 3, 2]
    assert run(engine, [ask(1, t=100.0), ask(2, t=700.0)], Plan(speed=None)).seconds < 60


def test_parallel_is_a_limit() -> None:
    engine = FakeEngine(slow_from=1, slow_seconds=0.2)
    run(engine, [ask(1) for _ in range(6)], Plan(parallel=2, speed=None))
    assert engine.peak == 2
    engine.peak = 0
    run(engine, [ask(1) for _ in range(6)], Plan(speed=None))
    assert engine.peak == 6


def test_repeat_sends_all_again_after_the_round_before() -> None:
    done = run(FakeEngine(), [ask(1), ask(2)], Plan(repeat=3))
    assert [outcome.round for outcome in done.outcomes] == [0, 0, 1, 1, 2, 2]


def test_errors_are_results() -> None:
    engine = FakeEngine(fail_from=5, breaks_from=3)
    good, broken, failed = sent(run(engine, [ask(1), ask(3, stream=True), ask(5)]))
    assert good.state == "finished"
    assert (broken.state, broken.status, broken.error) == ("unfinished", 200, "ConnectionResetError: reset")
    assert broken.output is not None
    assert broken.output.text == "a b "
    assert (failed.state, failed.status, failed.error) == ("failed", 500, "planted failure")


def test_a_server_that_dies_ends_the_replay() -> None:
    engine = FakeEngine(dies_from=3)
    done = run(engine, [ask(1, t=0.0), ask(3, t=0.01), ask(1, t=1.0)], Plan(repeat=2))
    assert not done.alive
    assert [(one.state, one.error) for one in sent(done)][1:] == [
        ("unfinished", "RemoteProtocolError: Server disconnected without sending a response."), ("unfinished", NOT_SENT),
    ]  # fmt: skip


def test_no_server_is_no_result() -> None:
    with pytest.raises(NoServer):
        run(FakeEngine(dead=True), [ask(1)])


def test_a_request_that_takes_too_long_is_unfinished() -> None:
    [request] = sent(run(FakeEngine(slow_from=1, slow_seconds=5), [ask(1)], Plan(timeout=0.05)))
    assert (request.state, request.error.partition(":")[0]) == ("unfinished", "TimeoutError")


def test_started_is_told_once_and_while_the_request_is_under_way() -> None:
    engine = FakeEngine(slow_from=1, slow_seconds=0.05)
    under_way: list[int] = []
    run(engine, [ask(1), ask(1)], started=lambda: under_way.append(len(engine.seen)))
    assert len(under_way) == 1


def test_the_only_model_stands_in_for_another() -> None:
    engine = FakeEngine()
    done = run(engine, [ask(1, path="/v1/completions", model="other")])
    assert (done.model, engine.seen[0][1]["model"]) == ("tiny", "tiny")
    assert run(FakeEngine(models=("a", "b")), [ask(1, path="/v1/completions", model="other")]).model == ""


def test_lengths_are_kept_whatever_the_model_says() -> None:
    output = Output("x", count=7)
    plan = Plan(ignore_eos=True)
    native = Request("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 99}}, output=output)
    assert prepared(native, plan)["sampling_params"] == {"max_new_tokens": 7, "ignore_eos": True}
    openai = Request("/v1/chat/completions", {"messages": [], "max_completion_tokens": 99}, output=output)
    assert prepared(openai, plan) == {"messages": [], "max_tokens": 7, "ignore_eos": True}
    assert native.body["sampling_params"] == {"max_new_tokens": 99}


def test_streams_can_be_asked_for() -> None:
    openai = Request("/v1/completions", {"prompt": "a"})
    assert prepared(openai, Plan(stream=True)) == {
        "prompt": "a",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert prepared(openai, Plan(stream=False)) == {"prompt": "a", "stream": False}


def test_what_comes_back_can_be_replayed() -> None:
    first = sent(run(FakeEngine(), [ask(2)]))
    again = sent(run(FakeEngine(), first))
    assert (again[0].output, again[0].path) == (first[0].output, "/generate")
    assert isinstance(first[0].timing, Timing)


def test_prompts_as_tokens() -> None:
    async def go(requests: list[Request]) -> list[Request]:
        async with Client("http://engine:30000", transport=FakeEngine()) as client:
            return await tokenized(client, requests)

    other = Request("/generate", {"text": "ab c", "stream": True}, prompt_tokens=3)
    chat = Request("/v1/chat/completions", {"messages": []})
    plain, prompt, kept, chatted = asyncio.run(go([
        Request("/generate", {"text": "ab c", "stream": True}, prompt_tokens=2), Request("/v1/completions", {"prompt": "ab c"}), other, chat,
    ]))  # fmt: skip
    assert (plain.body, plain.prompt_tokens) == ({"stream": True, "input_ids": [2, 1]}, 2)
    assert prompt.body == {"prompt": [2, 1]}
    assert kept is other
    assert chatted is chat
