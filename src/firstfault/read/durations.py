"""How long the calls of an operator took by themselves, and the first that took far longer than those before.

Slow(op="pick_tokens", first=<call 62>, calls=10, usual=70_000, took=21_000_000, lasting=True)

Host times, without those of the calls inside: a call that waits for the device has the time of what it waits for.
Calls are held against those of the same operator that were given about as many bytes, for a prefill takes longer than
a decode as it should.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstfault.read.calls import Call

WARM_UP = 2
"""First calls of a kind that are left out: they compile, allocate, and load libraries."""
ENOUGH_CALLS = 6
"""Calls that make what is usual."""
MOST_USUAL = 48
"""Calls that what is usual is taken from: the first, so that what became slow is not."""
TIMES = 5
"""How many times longer than usual a slow call takes."""
LASTING_CALLS = 5
"""Slow calls one after the other that are no hiccup of the machine."""
WORTH_LASTING = 1_000_000
"""Nanoseconds by which each of them takes longer, at least."""
SPIKE_TIMES = 20
WORTH_A_SPIKE = 200_000_000
"""Nanoseconds by which a single call takes longer, at least."""
MOST_KINDS = 4000
MOST_SLOW = 8


@dataclass
class Slow:
    """Calls that took far longer than those before them.

    Attributes:
        first: the first of them.
        usual: nanoseconds, the median of the calls before.
        took: nanoseconds, the median of the slow calls.
        calls: how many there were, one after the other; those before them in ``before``.
        ended: whether a call of the usual length came after them.
    """

    first: Call
    usual: int
    before: int
    durations: list[int] = field(default_factory=list)
    calls: int = 0
    ended: bool = False

    @property
    def took(self) -> int:
        """Nanoseconds of one, the median."""
        return int(median(self.durations))

    @property
    def lost(self) -> int:
        """Nanoseconds that all of them took longer than usual."""
        return self.calls * max(self.took - self.usual, 0)


@dataclass(slots=True)
class _Kind:
    """The calls of one operator of about one size."""

    seen: int = 0
    usual: list[int] = field(default_factory=list)
    median: int = 0
    run: Slow | None = None
    slow: bool = False
    """Whether what it is being slow at is kept."""


class Durations:
    """The times of the calls of one process, learned call by call."""

    def __init__(self) -> None:
        self.slow: list[Slow] = []
        self.total = 0
        """Nanoseconds of all calls, each without those inside it."""

        self._kinds: dict[tuple[str, int], _Kind] = {}

    @property
    def measured(self) -> int:
        """How many kinds of calls have a usual length."""
        return sum(len(kind.usual) >= ENOUGH_CALLS for kind in self._kinds.values())

    def take(self, call: Call) -> None:
        """Take in a call that came back."""
        took = max(call.duration - call.inside, 0)
        if not call.duration:
            return
        self.total += took
        key = _key(call)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                return
            kind = self._kinds[key] = _Kind()
        kind.seen += 1
        if kind.seen <= WARM_UP:
            return
        if len(kind.usual) >= ENOUGH_CALLS and took > TIMES * kind.median and took - kind.median >= WORTH_LASTING:
            self._slow(kind, call, took)
        else:
            _usual(kind, took)

    def usual(self, call: Call) -> int:
        """Nanoseconds that calls like this one took by themselves, the median; 0 where that is not known."""
        kind = self._kinds.get(_key(call))
        return kind.median if kind is not None else 0

    def _slow(self, kind: _Kind, call: Call, took: int) -> None:
        run = kind.run
        if run is None:
            run = kind.run = Slow(call, kind.median, len(kind.usual))
        run.calls += 1
        if len(run.durations) < MOST_USUAL:
            run.durations.append(took)
        spike = took > SPIKE_TIMES * kind.median and took - kind.median >= WORTH_A_SPIKE
        if not kind.slow and (spike or run.calls >= LASTING_CALLS) and len(self.slow) < MOST_SLOW:
            kind.slow = True
            self.slow.append(run)


def _key(call: Call) -> tuple[str, int]:
    """What a call is held against: the operator, and about how many bytes it was given."""
    return call.op, sum(tensor.nbytes for _, tensor in call.given).bit_length()


def _usual(kind: _Kind, took: int) -> None:
    if kind.run is not None:
        kind.run.ended, kind.run, kind.slow = True, None, False
    if len(kind.usual) < MOST_USUAL:
        kind.usual.append(took)
        kind.median = int(median(kind.usual))
