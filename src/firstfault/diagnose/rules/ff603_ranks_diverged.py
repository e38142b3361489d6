"""Ranks that were in different collectives, or of which one never came.

## What it finds
In a record of several ranks, for each process group: the first collective, by its number in the group, that not all
ranks began alike. Either their operators, dtypes or sizes differ, so that one waits for what the other never sends; or
some began it and another did not come to it.

## Why it matters
Every rank is right by itself, and all of them hang, or one aborts inside the library with a size that does not fit
("8 vs 4"). The fault lies before: a condition that only one rank has, in front of a collective.

## Evidence
What each rank was in at that number, and what the odd one did last.

## Next step
Compare the ordered collectives of the ranks, and look in the odd one's code for what it decides by itself. Which of
two ranks is wrong no record tells; nor whether a rank that did not come was late, stuck in the network, or gone.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.calls import Call, State
from firstfault.read.formats.values import elements
from firstfault.read.process import Process

KIND = Kind.HANG
SAME_SIZE = ("all_reduce", "broadcast", "reduce", "reduce_scatter_tensor", "all_gather_into_tensor")
"""Collectives that take as many elements of one dtype on every rank."""
MOST_RANKS = 64


class _Rank(NamedTuple):
    """One rank of a group: its process, and the collectives that are still kept, by their numbers."""

    rank: int
    process: Process
    calls: Mapping[int, Call]


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look where the ranks of a group parted, if the call is a collective that failed or was waited in."""
    if len(suspect.peers) < 2 or suspect.call.state not in (State.IN_FLIGHT, State.RAISED):
        return
    own = _innermost(suspect)
    if own.record.collective is None:
        return
    ranks = _ranks(suspect, own.record.collective.group)
    parted = _parted(ranks)
    if parted is None:
        return
    number, text, evidence = parted
    yield finding(
        __name__,
        suspect,
        Confidence.HIGH,
        [],
        f"{text}, as collective {number} of group {own.record.collective.group}",
        "compare what the ranks did before it, and look for what one of them decides by itself",
        command=f"firstfault log {shlex.quote(suspect.source)} --op '*distributed*' --last 20",
        evidence=evidence,
        rules_out="the network, as far as a rank was not there: it was elsewhere",
    )


def _innermost(suspect: Suspect) -> Call:
    """The collective that a call was in: itself, or the last that the process began."""
    if suspect.call.record.collective is not None:
        return suspect.call
    every = _collectives(suspect.process)
    inside = [call for call in every if call.record.parent == suspect.call.n and call.state is not State.RETURNED]
    return inside[-1] if inside else suspect.call


def _ranks(suspect: Suspect, group: str) -> list[_Rank]:
    """The ranks of a group that there are records of."""
    found: list[_Rank] = []
    for process in suspect.peers.values():
        calls = [call for call in _collectives(process) if _place(call) == group]
        rank = next((call.record.collective.rank for call in calls if call.record.collective), None)
        if rank is not None and len(found) < MOST_RANKS:
            numbered = {call.record.collective.number: call for call in calls if call.record.collective}
            found.append(_Rank(rank, process, numbered))
    return sorted(found, key=lambda each: each.rank)


def _place(call: Call) -> str | None:
    """The group of a collective that has a number in it."""
    place = call.record.collective
    return place.group if place is not None and place.number else None


def _collectives(process: Process) -> list[Call]:
    """Those that are kept of a process, in their order."""
    open_calls = [call for thread in process.threads.values() for call in thread.open]
    every = {call.n: call for call in (*process.recent.values(), *open_calls) if call.record.collective is not None}
    return [every[n] for n in sorted(every)]


def _parted(ranks: list[_Rank]) -> tuple[int, str, list[str]] | None:
    """The first number at which ranks did not do the same, in words, with what each did."""
    if len(ranks) < 2:
        return None
    first = max(min(each.calls) for each in ranks)
    last = max(max(each.calls) for each in ranks)
    for number in range(first, last + 1):
        here = [each for each in ranks if number in each.calls]
        if len(here) < len(ranks):
            return number, _absent(number, here, ranks), [*_told(number, ranks)]
        signs = {each.rank: _sign(each.calls[number]) for each in here}
        if len(set(signs.values())) > 1:
            return number, _unlike(number, here, signs), [*_told(number, ranks)]
    return None


def _sign(call: Call) -> tuple[object, ...]:
    """What must be alike on every rank."""
    name = call.op.rpartition(".")[2]
    if name not in SAME_SIZE or not call.given:
        return (call.op,)
    tensor = call.given[0][1]
    return call.op, tensor.dtype, elements(tensor.shape)


def _unlike(number: int, here: list[_Rank], signs: Mapping[int, tuple[object, ...]]) -> str:
    """Who did what, those of the same together, the most first."""
    parts = [
        f"{_named([each.rank for each in here if signs[each.rank] == sign])} began {_in_words(sign)}"
        for sign, _ in Counter(signs.values()).most_common()
    ]
    return " and ".join(parts)


def _in_words(sign: tuple[object, ...]) -> str:
    return str(sign[0]) if len(sign) == 1 else f"{sign[0]} of {sign[2]} × {sign[1]}"


def _absent(number: int, here: list[_Rank], ranks: list[_Rank]) -> str:
    gone = [each.rank for each in ranks if number not in each.calls]
    op = here[0].calls[number].op
    return f"{_named([each.rank for each in here])} began {op} and {_named(gone)} did not come to it"


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _told(number: int, ranks: list[_Rank]) -> Iterator[str]:
    """What each rank did at that number; of one that did not come, its last call."""
    for each in ranks:
        call = each.calls.get(number)
        if call is not None:
            yield f"rank {each.rank} ({each.process.name}): {call.op} (call {call.n}), {call.state.value}"
        else:
            yield f"rank {each.rank} ({each.process.name}): {_last(each.process)}"


def _last(process: Process) -> str:
    """Where a process was last."""
    in_flight = process.in_flight()
    if in_flight:
        return f"in {in_flight[0].op} (call {in_flight[0].n})"
    call = next(reversed(process.recent.values()), None)
    ended = ", and ended by itself" if process.ended else ""
    return f"its last call was {call.op} (call {call.n}){ended}" if call is not None else "no calls"
