"""Which of some saved requests are meant.

chosen(requests, Wanted(states=("unfinished",), slowest=3))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from firstfault.record.requests import Request


@dataclass(frozen=True)
class Wanted:
    """What requests have to be; each condition that is given has to hold.

    Attributes:
        states: one of these; empty for any.
        names: whose id matches one of these shell patterns; empty for any.
        longest_prompt, shortest_prompt: in tokens; one whose number is not known is left out.
        slowest: so many of the others, those that took longest.
        last: that were under way in the last so many seconds of the file.
    """

    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    shortest_prompt: int | None = None
    longest_prompt: int | None = None
    slowest: int | None = None
    last: float | None = None


def chosen(requests: Sequence[Request], wanted: Wanted) -> list[Request]:
    """Those that are meant, in the order in which they came."""
    ends = [end for request in requests if (end := _end(request)) is not None]
    kept = [request for request in requests if _is_wanted(request, wanted, max(ends, default=0.0))]
    if wanted.slowest is None:
        return kept
    slowest = sorted(kept, key=_took, reverse=True)[: wanted.slowest]
    return [request for request in kept if any(request is one for one in slowest)]


def _is_wanted(request: Request, wanted: Wanted, end: float) -> bool:
    tokens = request.prompt_tokens
    ended = _end(request)
    return (
        (not wanted.states or request.state in wanted.states)
        and (not wanted.names or any(fnmatchcase(request.id, name) for name in wanted.names))
        and (wanted.shortest_prompt is None or (tokens is not None and tokens >= wanted.shortest_prompt))
        and (wanted.longest_prompt is None or (tokens is not None and tokens <= wanted.longest_prompt))
        and (wanted.last is None or (ended is not None and ended >= end - wanted.last))
    )


def _took(request: Request) -> float:
    return (request.timing.e2e if request.timing else None) or 0.0


def _end(request: Request) -> float | None:
    return None if request.t is None else request.t + _took(request)
