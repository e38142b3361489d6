"""The least that brings an incident back: exact where length decides, honest where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.bisect.requests import Least, NotBack, Prompt, Unclear, shrink
from firstfault.record.requests import Request


def tokens(count: int) -> Request:
    return Request("/generate", {"input_ids": list(range(1, count + 1))}, id=str(count))


def longest(requests: Sequence[Request]) -> int:
    return max(len(request.body["input_ids"]) for request in requests)


def counted(brings_back: Callable[[Sequence[Request]], bool]) -> tuple[Callable[[Sequence[Request]], bool], list[int]]:
    calls = [0]

    def ask(requests: Sequence[Request]) -> bool:
        calls[0] += 1
        return brings_back(requests)

    return ask, calls


@given(whole=st.integers(2, 300), data=st.data())
def test_the_length_is_found_exactly(whole: int, data: st.DataObject) -> None:
    planted = data.draw(st.integers(1, whole))
    others = [tokens(count) for count in data.draw(st.lists(st.integers(1, max(1, planted - 1)), max_size=4))]
    ask, calls = counted(lambda requests: longest(requests) >= planted)
    if any(longest([other]) >= planted for other in others):
        others = []
    least = shrink([*others, tokens(whole)], ask)
    assert (len(least.requests), least.prompt, least.original, least.unit) == (1, planted, whole, "tokens")
    assert least.monotone is True
    assert least.requests[0].body["input_ids"] == list(range(1, planted + 1))
    assert least.attempts == calls[0] <= 40
    assert planted == 1 or least.tried[planted - 1] is False


def test_two_requests_that_only_fail_together() -> None:
    requests = [tokens(count) for count in (3, 4, 5, 6, 7)]
    least = shrink(requests, lambda some: {4, 6} <= {int(request.id) for request in some})
    assert [request.id for request in least.requests] == ["4", "6"]


def test_one_token_that_does_it_is_left_alone() -> None:
    least = shrink([tokens(61)], lambda requests: 44 in requests[0].body["input_ids"])
    assert (least.prompt, least.requests[0].body["input_ids"]) == (1, [44])


def test_what_is_not_monotone_is_said() -> None:
    least = shrink([tokens(100)], lambda requests: longest(requests) in (1, 2) or longest(requests) >= 50)
    assert (least.prompt, least.monotone) == (1, False)
    least = shrink([tokens(100)], lambda requests: longest(requests) >= 50 and longest(requests) != 99)
    assert (least.prompt, least.monotone) == (50, False)


@pytest.mark.parametrize(("body", "unit", "length"), [
    ({"text": "hello"}, "characters", 5),
    ({"prompt": [1, 2, 3]}, "tokens", 3),
    ({"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hello there"}]}, "characters", 11),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url"}]}]}, "characters", 5),
])  # fmt: skip
def test_prompts_of_every_form(body: dict[str, Any], unit: str, length: int) -> None:
    request = Request("/x", body)
    prompt = Prompt.of(request)
    assert prompt is not None
    assert (prompt.unit, prompt.length) == (unit, length)
    assert prompt.part(0, 2).length == 2
    assert prompt.length == length  # the original is left as it is


def test_a_request_without_a_prompt_is_left() -> None:
    least = shrink([Request("/x", {})], lambda requests: True)
    assert least == Least([Request("/x", {})], attempts=1)


def test_what_does_not_come_back_cannot_be_shrunk() -> None:
    with pytest.raises(NotBack):
        shrink([tokens(3)], lambda requests: False)
    with pytest.raises(Unclear, match="could not tell"):
        shrink([tokens(3)], lambda requests: None)


def test_answers_by_chance_end() -> None:
    answers = iter([True, False, False, False, False, True, True, False] * 100)
    try:
        least = shrink([tokens(9) for _ in range(4)], lambda requests: next(answers))
    except Unclear:
        return
    assert least.attempts < 400
