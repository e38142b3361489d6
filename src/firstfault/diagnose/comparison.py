"""Two records, call by call: the first call that was given the same and gave something else.

norm (call 3 | call 4) was given the same and gave something else: return: NaN 0 | 16

Calls are compared as they end, so that of two nested ones the inner, where it began, comes first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from firstfault.diagnose import divergence
from firstfault.diagnose.alignment import aligned
from firstfault.diagnose.compared import COMPARISON_VERSION, Change, Comparison, Pair, Side, Unpaired, Verdict, plain
from firstfault.diagnose.pairs import Pairs, Saved
from firstfault.read.calls import Call, State
from firstfault.read.events import Event, Replayed
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.record import schema

MOST_UNPAIRED = 12
"""Calls of one side only that are listed."""


@dataclass(frozen=True)
class Record:
    """One side, to be compared.

    Attributes:
        source: where it lies.
        events: the records of one process.
        complete: fetches what only the dump of a call knows.
        session: what is said of the command.
    """

    source: str
    events: Iterable[Event]
    complete: Callable[[Call], None]
    session: Mapping[str, object]


def comparison(left: Record, right: Record, saved: Saved = lambda left, right: ({}, {})) -> Comparison:
    """Compare two records."""
    sides = (_Calls(left), _Calls(right))
    found = Comparison(COMPARISON_VERSION, Verdict.SAME, "", Side(plain(left.source)), Side(plain(right.source)))
    pairs = Pairs(found, saved)
    for one, other in aligned(*sides):
        if one is not None and other is not None:
            for record, call in ((left, one), (right, other)):
                record.complete(call.call)
            pairs.take(one.call, other.call)
        else:
            _single(found, one, other)
    for told, calls in zip((found.left, found.right), sides, strict=True):
        calls.describe(told)
    pairs.close(same_level=sides[0].level == sides[1].level)
    found.environment = list(_changes(_environment(left, sides[0]), _environment(right, sides[1])))
    return found


def conclude(found: Comparison) -> Comparison:
    """Add the verdict, once all problems of reading are known."""
    differs = found.first or found.given or found.only
    if differs:
        found.verdict = Verdict.DIFFERS
    elif found.problems or not found.paired or found.measured < found.paired:
        found.verdict = Verdict.CANNOT_TELL
    found.diagnosis = divergence.diagnosed(found)
    found.conclusion = _conclusion(found)
    return found


@dataclass(frozen=True)
class Ended:
    """A call that has ended, or will not, as ``aligned`` looks at it."""

    call: Call
    thread: int

    @property
    def op(self) -> str:
        """Its operator."""
        return self.call.op


class _Calls:
    """The calls of a record in the order in which they ended, those that did not at the end."""

    def __init__(self, record: Record) -> None:
        self._events = record.events
        self._history = History()
        self._threads: dict[int, int] = {}

    @property
    def process(self) -> Process | None:
        """Whose calls they are."""
        return next(iter(self._history.processes.values()), None)

    @property
    def level(self) -> int:
        """At which it was recorded; 0 where that is not known."""
        return self.process.header.level if self.process is not None and self.process.header is not None else 0

    def __iter__(self) -> Iterator[Ended]:
        """A copy of each: a history takes the arguments of those that ended long ago away."""
        for event in self._events:
            ended = self._history.feed(event)
            if isinstance(event.record, schema.Call):
                self._threads.setdefault(event.record.tid, len(self._threads))
            elif isinstance(event.record, Replayed):
                yield self._of(_replayed(event.process, event.record))
            if ended is not None and not self._is_captured(ended):
                yield self._of(ended)
        for thread in self.process.threads.values() if self.process is not None else ():
            yield from map(self._of, reversed(thread.open))

    def describe(self, side: Side) -> None:
        """Say whose they were."""
        if self.process is not None:
            side.process, side.calls = self.process.name, self.process.calls
            side.rank = self.process.header.rank if self.process.header else ""

    def _is_captured(self, call: Call) -> bool:
        """Whether it only went into a CUDA graph, whose replays run it."""
        return self.process is not None and call.n in self.process.captured

    def _of(self, call: Call) -> Ended:
        kept = copy.copy(call)
        kept.record = msgspec.structs.replace(call.record)
        return Ended(kept, self._threads.get(call.record.tid, 0))


def _replayed(process: str, record: Replayed) -> Call:
    """A captured call as one replay ran it."""
    call = Call(process, record.call)
    call.state, call.out, call.out_described = State.RETURNED, record.result.out, record.result.described
    call.mutated, call.dump = record.result.mutated, record.dump
    return call


def _single(found: Comparison, left: Ended | None, right: Ended | None) -> None:
    found.only_left += left is not None
    found.only_right += right is not None
    only = left or right
    if only is not None and len(found.only) < MOST_UNPAIRED:
        found.only.append(Unpaired("left" if left is not None else "right", only.call.n, plain(only.op)))


# --- what the runs were made of

_OF_THE_RUN = ("host", "platform", "level", "devices", "targets", "command", "exit_status", "signal")


def _environment(record: Record, calls: _Calls) -> dict[str, str]:
    """By name, what the session says, and what the process itself does."""
    found = {name: _shown(record.session[name]) for name in _OF_THE_RUN if record.session.get(name) is not None}
    for group in ("versions", "environment"):
        values = record.session.get(group)
        if isinstance(values, dict):
            found |= {f"{group}.{name}": _shown(value) for name, value in values.items()}
    header = calls.process.header if calls.process is not None else None
    if header is not None:
        found |= {"host": header.host, "rank": header.rank, "level": str(header.level)}
        found |= {f"versions.{name}": version for name, version in header.versions.items()}
    return found


def _shown(value: object) -> str:
    return plain(" ".join(map(str, value)) if isinstance(value, list) else str(value))


def _changes(left: dict[str, str], right: dict[str, str]) -> Iterator[Change]:
    for name in sorted({**left, **right}):
        if left.get(name) != right.get(name):
            yield Change(name, left.get(name, ""), right.get(name, ""))


# --- in a sentence


def _conclusion(found: Comparison) -> str:
    if found.verdict is Verdict.CANNOT_TELL:
        return _undecided(found)
    if found.first is not None:
        text = (
            f"{_named(found.first)} is the first that was given the same and gave something else: {_first(found.first)}"
        )
        return f"{text}{_before(found.given, found.first)}{_explained(found)}."
    if found.given is not None:
        return (
            f"{_named(found.given)} is the first that was given something else: {_first(found.given)}{_source(found)}."
        )
    if found.only:
        only = found.only[0]
        return (
            f"All {found.paired} calls that both have agree, but one side has calls that the other has not "
            f"({found.only_left} left, {found.only_right} right), first {only.op} (call {only.call}, {only.side})."
        )
    text = f"All {found.paired} calls were given the same and gave the same"
    return f"{text}; {found.slower[0].in_words}." if found.slower else f"{text}."


def _explained(found: Comparison) -> str:
    """What the diagnosis adds to that a call gave something else."""
    told = found.diagnosis.text if found.diagnosis is not None else ""
    added = told.partition(" gave something else")[2]
    return added if added[:1] in (",", ";") else ""


def _undecided(found: Comparison) -> str:
    if not found.paired:
        return "No call could be compared: neither says how its calls ended, or they have none in common."
    if found.measured < found.paired:
        return (
            f"All {found.paired} calls agree in what was recorded, but of {found.paired - found.measured} the values "
            "were not: record both at level 5 or 10."
        )
    return f"All {found.paired} calls that could be read are the same, but not everything could."


def _before(given: Pair | None, gave: Pair) -> str:
    """What was given something else before any gave something else for the same."""
    if given is None or given.order > gave.order:
        return ""
    return f"; {_named(given)} had been given something else before"


def _named(pair: Pair) -> str:
    return f"{pair.op} (call {pair.left} | call {pair.right})"


def _first(pair: Pair) -> str:
    first = pair.differences[0]
    more = len(pair.differences) - 1
    return f"{first.name}: {first.what} {first.left} | {first.right}" + (f", and {more} more" if more else "")


def _source(found: Comparison) -> str:
    """What wrote the argument, though it gave nothing that could be told apart."""
    assert found.given is not None
    writer = next(iter(found.given.writers.values()), "")
    return f"; {writer} wrote it last" if writer else "; no recorded call wrote it"
