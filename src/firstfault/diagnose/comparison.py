"""Two records, call by call: the first call that was given the same and gave something else.

norm (call 3 | call 4) was given the same and gave something else: return: NaN 0 | 16

Calls are compared as they end, so that of two nested ones the inner, where it began, comes first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from firstfault.diagnose.alignment import aligned
from firstfault.diagnose.equality import Difference, compare
from firstfault.read.calls import Call, History, Process, State
from firstfault.read.events import Event, Replayed
from firstfault.record import schema

COMPARISON_VERSION = 1
MOST_UNPAIRED = 12
"""Calls of one side only that are listed."""
MOST_TEXT = 400


class Verdict(str, Enum):
    """How two records compare."""

    SAME = "same"
    DIFFERS = "differs"
    CANNOT_TELL = "could not tell"


class Side(msgspec.Struct):
    """One of the two: where it is from, and how many calls of it were looked at."""

    source: str
    process: str = ""
    rank: str = ""
    calls: int = 0


class Pair(msgspec.Struct, omit_defaults=True):
    """The same call on both sides.

    Attributes:
        left, right: its numbers.
        order: which of the pairs it is, as they ended, from 1.
        sites: where it was made.
        differences: what of its results, or where these are ``given`` of its arguments, is not the same.
        writers: the calls on the left that wrote the arguments that are not, by argument.
    """

    op: str
    left: int
    right: int
    order: int
    sites: list[str] = []
    differences: list[Difference] = []
    writers: dict[str, str] = {}


class Unpaired(msgspec.Struct):
    """A call that only one side has: ``left`` or ``right``."""

    side: str
    call: int
    op: str


class Change(msgspec.Struct):
    """Something of the environment that is not the same; empty where one side does not have it."""

    name: str
    left: str
    right: str


class Comparison(msgspec.Struct, omit_defaults=True):
    """The whole answer.

    Attributes:
        paired: calls that both sides have.
        measured: those of them of which all values were recorded on both sides.
        gave: how many were given the same and gave something else.
        first: the first of them.
        given: the first that was given something else.
        only: the first calls that one side alone has; ``only_left`` and ``only_right`` are how many there are.
        environment: what differs in versions, variables, devices and the command.
        problems: what could not be read.
    """

    version: int
    verdict: Verdict
    conclusion: str
    left: Side
    right: Side
    paired: int = 0
    measured: int = 0
    gave: int = 0
    first: Pair | None = None
    given: Pair | None = None
    only: list[Unpaired] = []
    only_left: int = 0
    only_right: int = 0
    environment: list[Change] = []
    problems: list[str] = []


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


def comparison(left: Record, right: Record) -> Comparison:
    """Compare two records."""
    sides = (_Calls(left), _Calls(right))
    found = Comparison(COMPARISON_VERSION, Verdict.SAME, "", Side(plain(left.source)), Side(plain(right.source)))
    for one, other in aligned(*sides):
        if one is not None and other is not None:
            for record, call in ((left, one), (right, other)):
                record.complete(call.call)
            _pair(found, one.call, other.call)
        else:
            _single(found, one, other)
    for told, calls in zip((found.left, found.right), sides, strict=True):
        calls.describe(told)
    found.environment = list(_changes(_environment(left, sides[0]), _environment(right, sides[1])))
    return found


def conclude(found: Comparison) -> Comparison:
    """Add the verdict, once all problems of reading are known."""
    differs = found.first or found.given or found.only
    if differs:
        found.verdict = Verdict.DIFFERS
    elif found.problems or not found.paired or found.measured < found.paired:
        found.verdict = Verdict.CANNOT_TELL
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


def _pair(found: Comparison, left: Call, right: Call) -> None:
    found.paired += 1
    given = compare(left.inputs(), right.inputs())
    gave = compare(_results(left), _results(right))
    known = left.record.args is not None and right.record.args is not None
    found.measured += known and given.measured and gave.measured and _ended(left) and _ended(right)
    differences = [*_ends(left, right), *gave.differences]
    if given.differences:
        found.given = found.given or _told(found.paired, left, right, given.differences)
    elif differences:
        found.gave += 1
        found.first = found.first or _told(found.paired, left, right, differences)


def _results(call: Call) -> list[tuple[str, schema.Value]]:
    return [("return", call.out)] if call.out_described else []


def _ended(call: Call) -> bool:
    """Whether what it gave is recorded, or that it gave nothing."""
    return call.out_described or call.state is State.RAISED


def _ends(left: Call, right: Call) -> list[Difference]:
    ends = [_end(call) for call in (left, right)]
    return [Difference("the call", "end", *ends)] if ends[0] != ends[1] else []


def _end(call: Call) -> str:
    return f"raised {call.exception}" if call.state is State.RAISED else call.state.value


def _told(order: int, left: Call, right: Call, differences: list[Difference]) -> Pair:
    named = {difference.name for difference in differences}
    writers = {
        label: f"{links[0].writer.op} (call {links[0].writer.n})"
        for label, links in left.links.items()
        if links and label in named
    }
    sites = [plain(call.record.site) for call in (left, right)]
    return Pair(plain(left.op), left.n, right.n, order, sites, differences, writers)


def plain(text: str) -> str:
    """A text of the program's, cut where it is endless."""
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"


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
        return f"{text}{_before(found.given, found.first)}."
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
    return f"All {found.paired} calls were given the same and gave the same."


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
