"""The least that brings an incident back: the fewest of its requests, and the shortest prompt.

    shrink(requests, brings_back)  →  Least(requests=[Request("/generate", {"input_ids": [… 37 of 61 …]})], prompt=37)

First the requests are reduced to a set without any one of which the incident does not come back (``search``). Then the
longest prompt among them is cut: to the shortest beginning that still brings it back, and then to the shortest end of
that. What is found is exact in that one piece less does not bring it back; both were tried. That nothing shorter does
either follows only where length alone decides (it is monotone): so further lengths are tried, shorter ones that must
not, longer ones that must, and what they said is told. Where a shorter one does, the search goes on from there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstfault.bisect.search import Inconsistent, minimal_set
from firstfault.record.requests import Request

CHECKS = 4
"""Lengths on either side of what was found that are tried to see whether it is monotone."""
MOST_ATTEMPTS = 400


class NotBack(Exception):
    """The incident does not come back even with all of the requests."""


class Unclear(Exception):
    """An attempt could not tell, or the same requests brought it back once and then not."""


BringsBack = Callable[[Sequence[Request]], bool | None]
"""Whether requests bring the incident back; None where an attempt cannot tell."""


@dataclass
class Least:
    """What is left.

    Attributes:
        requests: that bring it back.
        prompt: pieces of the shortened prompt; None where there is nothing to shorten.
        original: how many there were.
        unit: ``tokens`` or ``characters``.
        attempts: how many there were.
        monotone: whether all lengths that were tried agree that it begins with this one; None where none was.
        tried: what was tried of the prompt's beginning: length → whether it brought it back.
    """

    requests: list[Request]
    prompt: int | None = None
    original: int | None = None
    unit: str = ""
    attempts: int = 0
    monotone: bool | None = None
    tried: dict[int, bool] = field(default_factory=dict)


def shrink(requests: Sequence[Request], brings_back: BringsBack) -> Least:
    """The least that brings it back.

    Raises:
        NotBack: all of them do not.
        Unclear: an attempt could not tell, or the answers contradict each other.
    """
    asked = _Asked(requests, brings_back)
    if not asked.subset(frozenset(range(len(requests)))):
        raise NotBack
    kept = [0]
    if len(requests) > 1:
        try:
            kept = sorted(minimal_set(range(len(requests)), asked.subset))
        except Inconsistent:
            raise Unclear("the same requests brought it back and did not") from None
    least = Least([requests[index] for index in kept])
    _shorten(least, asked)
    least.attempts = asked.attempts
    return least


class _Asked:
    """Attempts, each made once."""

    def __init__(self, requests: Sequence[Request], brings_back: BringsBack) -> None:
        self._requests = requests
        self._brings_back = brings_back
        self._subsets: dict[frozenset[int], bool] = {frozenset(): False}
        self.attempts = 0

    def subset(self, indices: frozenset[int]) -> bool:
        """Whether some of the requests bring it back, in their order; none of them cannot."""
        if indices not in self._subsets:
            self._subsets[indices] = self.these([self._requests[index] for index in sorted(indices)])
        return self._subsets[indices]

    def these(self, requests: Sequence[Request]) -> bool:
        """Whether these bring it back."""
        if self.attempts >= MOST_ATTEMPTS:
            raise Unclear(f"it takes more than {MOST_ATTEMPTS} attempts")
        self.attempts += 1
        answer = self._brings_back(requests)
        if answer is None:
            raise Unclear("an attempt could not tell; see above")
        return answer


def _shorten(least: Least, asked: _Asked) -> None:
    """Cut the longest prompt, from its end and then from its beginning."""
    prompts = [Prompt.of(request) for request in least.requests]
    lengths = [prompt.length if prompt is not None else 0 for prompt in prompts]
    at = max(range(len(lengths)), key=lengths.__getitem__)
    prompt = prompts[at]
    if prompt is None or prompt.length < 2:
        return
    least.original, least.unit = prompt.length, prompt.unit

    def trial(shorter: Prompt) -> bool:
        return asked.these([*least.requests[:at], shorter.request, *least.requests[at + 1 :]])

    beginning = _Lengths(prompt.length, lambda length: trial(prompt.part(0, length)))
    length, least.monotone = beginning.shortest()
    least.tried = dict(sorted(beginning.known.items()))
    cut = prompt.part(0, length)
    end = _Lengths(length, lambda kept: trial(cut.part(length - kept, length)))
    shortest, monotone = end.shortest() if length > 1 and end.fails(length - 1) else (length, True)
    if shortest < length:
        least.monotone = least.monotone and monotone
        cut = cut.part(length - shortest, length)
    least.prompt = shortest
    least.requests[at] = cut.request


class _Lengths:
    """Which lengths of a prompt bring it back; the whole of it does."""

    def __init__(self, whole: int, trial: Callable[[int], bool]) -> None:
        self._trial = trial
        self.known: dict[int, bool] = {0: False, whole: True}

    def fails(self, length: int) -> bool:
        """Whether this length brings it back."""
        if length not in self.known:
            self.known[length] = self._trial(length)
        return self.known[length]

    def shortest(self) -> tuple[int, bool]:
        """The shortest length that was found, and whether all that was tried agrees that it begins there."""
        whole = max(self.known)
        best = self._between(0, whole)
        monotone = True
        while (shorter := self._shorter_that_fails(best)) is not None:
            monotone = False
            best = self._between(max(n for n in self.known if n < shorter and not self.known[n]), shorter)
        longer = [self.fails(length) for length in _spread(best + 1, whole - 1)]
        return best, monotone and all(longer)

    def _between(self, good: int, bad: int) -> int:
        """A length that brings it back where one less does not."""
        if bad - good > 1 and not self.fails(bad - 1):
            return bad
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.fails(middle):
                bad = middle
            else:
                good = middle
        return bad

    def _shorter_that_fails(self, best: int) -> int | None:
        return next((length for length in _spread(1, best - 1) if self.fails(length)), None)


def _spread(first: int, last: int) -> list[int]:
    """Some lengths from first to last, both among them."""
    if last < first:
        return []
    count = min(CHECKS, last - first + 1)
    return sorted({first + (last - first) * step // max(count - 1, 1) for step in range(count)})


@dataclass(frozen=True)
class Prompt:
    """The prompt of a request, as pieces that can be left out.

    Attributes:
        request: whose it is.
        place: the keys and indices that lead to it in the body.
        unit: ``tokens`` or ``characters``.
    """

    request: Request
    place: tuple[str | int, ...]
    unit: str

    @classmethod
    def of(cls, request: Request) -> Prompt | None:
        """The longest text or list of tokens that a request asks with; None where it has none."""
        places = list(_places(request.body))
        if not places:
            return None
        place = max(places, key=lambda found: len(_at(request.body, found)))
        unit = "characters" if isinstance(_at(request.body, place), str) else "tokens"
        return cls(request, place, unit)

    @property
    def length(self) -> int:
        """How many pieces it has."""
        return len(_at(self.request.body, self.place))

    def part(self, first: int, last: int) -> Prompt:
        """The same with the pieces from ``first`` to before ``last`` alone."""
        body = copy.deepcopy(self.request.body)
        holder = _at(body, self.place[:-1])
        holder[self.place[-1]] = holder[self.place[-1]][first:last]
        shorter = copy.copy(self.request)
        shorter.body, shorter.prompt_tokens = body, last - first if self.unit == "tokens" else None
        return Prompt(shorter, self.place, self.unit)


def _places(body: dict[str, Any]) -> list[tuple[str | int, ...]]:
    found: list[tuple[str | int, ...]] = []
    for name in ("input_ids", "text", "prompt", "input"):
        value = body.get(name)
        if isinstance(value, str) or (isinstance(value, list) and value and all(type(item) is int for item in value)):
            found.append((name,))
    for index, message in enumerate(body.get("messages") or ()):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            found.append(("messages", index, "content"))
        elif isinstance(content, list):
            found += [
                ("messages", index, "content", part, "text")
                for part, piece in enumerate(content)
                if isinstance(piece, dict) and isinstance(piece.get("text"), str)
            ]
    return found


def _at(body: Any, place: Sequence[str | int]) -> Any:
    for key in place:
        body = body[key]
    return body
