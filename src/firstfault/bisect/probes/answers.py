"""A server's answers → log-probabilities and tokens, from SGLang's ``/generate`` and the OpenAI-compatible endpoints.

{"meta_info": {"output_token_logprobs": [[-0.1, 42, null], …], …}, "text": "…"}
{"choices": [{"logprobs": {"content": [{"token": "…", "logprob": -0.1}]}, …}]}
{"choices": [{"logprobs": {"tokens": […], "token_logprobs": [null, -0.1]}, "text": "…"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from firstfault.bisect.probes.probe import NoAnswer, Output
from firstfault.read.files import read_whole

if TYPE_CHECKING:
    from firstfault.read.formats.saved_values import Arrays

LARGEST = 1 << 30


def logprobs(output: Output) -> Arrays:
    """The log-probabilities of every answer.

    Raises:
        NoAnswer: there are none in the answers.
    """
    import numpy

    found = {
        f"answer {at}": numpy.array([entry[1] for entry in entries], dtype=numpy.float64)
        for at, entries in enumerate(map(_entries, _answers(output)))
        if entries
    }
    if not found:
        raise NoAnswer("no answer has log-probabilities, although they were asked for; look at --probe tokens")
    return found


def tokens(output: Output) -> list[list[Any]]:
    """The tokens of every answer, or the words of its text.

    Raises:
        NoAnswer: there are none in the answers.
    """
    found = [[entry[0] for entry in _entries(each)] or _text(each).split() for each in _answers(output)]
    if not any(found):
        raise NoAnswer("the answers hold no text")
    return found


def _answers(output: Output) -> Iterator[Any]:
    if output.answers is None:
        raise NoAnswer("it has answered nothing")
    for line in read_whole(output.answers, LARGEST).splitlines():
        found = json.loads(line)
        yield from found if isinstance(found, list) else [found]


def _entries(answer: Any) -> list[tuple[Any, float]]:
    """Token and log-probability, of the prompt where they were asked for, and of what was generated."""
    about = _get(answer, "meta_info")
    if isinstance(about, dict):
        both = [*(about.get("input_token_logprobs") or []), *(about.get("output_token_logprobs") or [])]
        return [(entry[1], entry[0]) for entry in both if entry[0] is not None]
    found: list[tuple[Any, float]] = []
    for choice in _get(answer, "choices") or []:
        told = _get(choice, "logprobs")
        content = _get(told, "content")
        if content:
            found += [(entry["token"], entry["logprob"]) for entry in content]
        elif _get(told, "token_logprobs"):
            pairs = zip(told.get("tokens") or [], told["token_logprobs"], strict=False)
            found += [(token, value) for token, value in pairs if value is not None]
    return found


def _text(answer: Any) -> str:
    if isinstance(text := _get(answer, "text"), str):
        return text
    choices = _get(answer, "choices") or []
    texts = [_get(choice, "text") or _get(_get(choice, "message"), "content") for choice in choices]
    return " ".join(text for text in texts if isinstance(text, str))


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
