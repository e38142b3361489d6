"""Answers of engines, in pieces of any size: text, tokens, times."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record.requests import Output
from firstfault.serving.answers import Answering, Read


def sse(*pieces: Any, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def read(data: bytes, *, stream: bool = True, every: int = 10**9, error: str = "") -> Read:
    answering = Answering(stream)
    for count, at in enumerate(range(0, len(data), every), 1):
        answering.feed(data[at : at + every], count * 0.1)
    return answering.end(9.0, error=error)


def meta(count: int, reason: Any = None) -> dict[str, Any]:
    return {"id": "r7", "completion_tokens": count, "prompt_tokens": 5, "finish_reason": reason, "queue_time": 0.01}


END = {"type": "length", "length": 2}
CUMULATIVE = [
    {"text": "Par", "output_ids": [1], "meta_info": meta(1)},
    {"text": "Paris", "output_ids": [1, 2], "meta_info": meta(2, END)},
]
NEW_ONLY = [
    {"text": "Par", "output_ids": [1], "meta_info": meta(1)},
    {"text": "is", "output_ids": [2], "meta_info": meta(2, END)},
]
CHAT = [
    {"id": "r7", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "Par"}}]},
    {"choices": [{"index": 1, "delta": {"content": "other"}}]},
    {"choices": [{"index": 0, "delta": {"content": "is"}, "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
]
COMPLETION = [
    {"id": "r7", "choices": [{"index": 0, "text": "Par", "token_ids": [1]}]},
    {
        "choices": [{"index": 0, "text": "is", "token_ids": [2], "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    },
]


@pytest.mark.parametrize(
    "pieces", [CUMULATIVE, NEW_ONLY, CHAT, COMPLETION], ids=["cumulative", "new only", "chat", "completion"]
)
@pytest.mark.parametrize("every", [1, 7, 64, 10**9])
def test_streams_of_every_form(pieces: list[Any], every: int) -> None:
    found = read(sse(*pieces), every=every)
    tokens = None if pieces is CHAT else [1, 2]
    assert found.output == Output("Paris", tokens, "length", 2)
    assert (found.prompt_tokens, found.whole, found.error, found.id) == (5, True, "", "r7")
    assert found.timing.e2e == 9.0


def test_times_are_those_of_pieces_with_output() -> None:
    answering = Answering(True)
    for at, piece in zip((0.1, 0.5, 0.6, 0.9), CHAT, strict=False):
        answering.feed(sse(piece, done=False), at)
    timing = answering.end(1.0).timing
    assert timing.ttft == 0.5
    assert timing.itl == timing.longest_gap == pytest.approx(0.4)


@pytest.mark.parametrize("whole", [
    {"id": "r7", "text": "Paris", "output_ids": [1, 2], "meta_info": meta(2, END)},
    {"id": "r7", "choices": [{"index": 0, "message": {"content": "Paris"}, "finish_reason": "length"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    {"id": "r7", "choices": [{"index": 0, "text": "Paris", "finish_reason": "length"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
])  # fmt: skip
def test_whole_answers(whole: Any) -> None:
    found = read(json.dumps(whole).encode(), stream=False, every=3)
    assert found.output is not None
    assert (found.output.text, found.output.finish, found.output.count, found.id) == ("Paris", "length", 2, "r7")
    assert found.timing.ttft is None


def test_tool_calls_and_reasoning_are_output() -> None:
    message = {
        "reasoning_content": "hm ",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
    }
    found = read(json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode(), stream=False)
    assert found.output is not None
    assert found.output.text == "hm f{}"


def test_a_stream_that_breaks_is_not_whole() -> None:
    found = read(sse(CUMULATIVE[0], done=False), error="ConnectionResetError: reset")
    assert (found.whole, found.error, found.output and found.output.text) == (
        False,
        "ConnectionResetError: reset",
        "Par",
    )
    assert read(sse(CUMULATIVE[0], done=False)).whole is False


@pytest.mark.parametrize(("piece", "status"), [
    ({"error": {"message": "out of memory", "code": 500}}, 500),
    ({"error": "out of memory"}, None),
    ({"object": "error", "message": "out of memory"}, None),
    ({"text": "", "meta_info": meta(0, {"type": "abort", "message": "out of memory", "status_code": 400})}, 400),
])  # fmt: skip
def test_errors_inside_a_stream(piece: Any, status: int | None) -> None:
    found = read(sse(piece))
    assert (found.error, found.status) == ("out of memory", status)


@given(data=st.binary(max_size=300), every=st.integers(1, 40), stream=st.booleans())
def test_what_is_no_answer_is_none(data: bytes, every: int, stream: bool) -> None:
    found = read(b"data: " + data, every=every, stream=stream)
    assert found.error == ""


@given(pieces=st.lists(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["choices", "text", "meta_info", "delta", "message", "content", "tool_calls", "function", "usage", "index", "error",
         "finish_reason", "type", "output_ids", "token_ids", "id", "completion_tokens", "code", "reasoning_content", "arguments"]),
        inner, max_size=4), max_leaves=12), max_size=4))  # fmt: skip
def test_answers_of_odd_shapes(pieces: list[Any]) -> None:
    read(sse(*pieces))
    read(json.dumps(pieces[0] if pieces else None).encode(), stream=False)
