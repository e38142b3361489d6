"""One process: what each of its threads was in at the end, and what is kept of its calls.

That is a bounded amount: the calls that are open, the last that ended, and those whose results were the first to
go wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from firstfault.read import ignored
from firstfault.read.calls import Call, State
from firstfault.read.contracts import breaches
from firstfault.read.durations import Durations
from firstfault.read.fate import Fate, bad_values, fate
from firstfault.read.marks import Order
from firstfault.read.producers import Producers, Writer
from firstfault.read.results import Results
from firstfault.record import schema

LAST_CALLS = 10
MOST_OPEN = 256
"""Calls that one thread can be in."""
MOST_THREADS = 1024
MOST_MARKED = 4096
MOST_CAPTURED = 100_000
MOST_OPERATORS = 20_000
"""Counted by name in a process; those beyond them are counted as one."""
MOST_VALUES = 100_000
"""Values of calls that have ended that are kept of a process: the last few thousand calls."""
MOST_ORIGINS = 16
MOST_ENTRIES = 4
MOST_BROKEN = 4
FOLLOWED_EVERY = 1000
"""Calls after which it is worth following values once more."""
SOON = 300
"""Calls within which padding is masked, as a rule: how far values are followed as long as there are more to come."""
_TEXT_LIKE_A_VALUE = 256
"""Characters that take as much memory as a tensor's description."""


@dataclass
class Thread:
    """Where one thread stands.

    Attributes:
        open: the calls that it is in, the outermost first.
        last: the last that ended.
        raised: the call that an exception left, until another call begins or returns in the thread.
        passed: the outermost call that the same exception, or one that came of it, has left.
    """

    open: list[Call] = field(default_factory=list)
    last: deque[Call] = field(default_factory=lambda: deque(maxlen=LAST_CALLS))
    raised: Call | None = None
    passed: Call | None = None


@dataclass
class Process:
    """One process: where its threads stand, and how it ended."""

    name: str
    header: schema.Header | None = None
    end: schema.End | None = None
    calls: int = 0
    returns: int = 0
    raises: int = 0
    dumps: int = 0
    described: bool = False
    """Whether any of its calls came with their arguments: from level 3 on."""
    threads: dict[int, Thread] = field(default_factory=dict)
    notes: dict[str, schema.Note] = field(default_factory=dict)
    targets: dict[str, schema.Target] = field(default_factory=dict)
    by_target: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many calls each target has recorded, by operator."""

    dumps_skipped: dict[str, int] = field(default_factory=dict)
    by_number: dict[int, Call] = field(default_factory=dict)
    marks: Order = field(default_factory=Order)
    marked: OrderedDict[int, Call] = field(default_factory=OrderedDict)
    """The last calls with a progress marker, by number: one of them may be where the device was."""

    captured: dict[int, Call] = field(default_factory=dict)
    """The calls that were captured into CUDA graphs, by number: any replay may run them."""

    producers: Producers = field(default_factory=Producers)
    recent: OrderedDict[int, Call] = field(default_factory=OrderedDict)
    """The last calls that ended, by number, with all that was recorded of them."""

    origins: dict[int, Call] = field(default_factory=dict)
    """The first calls that made NaN or infinities of finite inputs, by number."""

    entries: dict[int, Call] = field(default_factory=dict)
    """The first calls that gave such values having been given some that no recorded call wrote, by number."""

    results: Results = field(default_factory=Results)
    durations: Durations = field(default_factory=Durations)
    ignored: ignored.Results = field(default_factory=ignored.Results)
    contracts: dict[str, list[schema.Contract]] = field(default_factory=dict)
    """What the program declared, by operator."""

    absorbed: set[int] = field(default_factory=set)
    """Those of both whose values are known to have gone nowhere."""

    broken: dict[int, Call] = field(default_factory=dict)
    """The first calls that did not keep to it, by number."""

    _values: int = 0
    _followed: int = 0
    """At how many calls the values of the first ones were followed last."""

    def find(self, n: int) -> Call | None:
        """A call by its number, if it is open or among those that are kept."""
        return self.by_number.get(n) or self.recent.get(n) or self.origins.get(n) or self.broken.get(n)

    def keep(self, call: Call, thread: Thread) -> None:
        """Remember a call that has ended; of those long before it only what a list of calls shows."""
        thread.last.append(call)
        self.recent[call.n] = call
        call.weight = _weight(call)
        self._values += call.weight
        while self._values > MOST_VALUES and len(self.recent) > 1:
            _, before = self.recent.popitem(last=False)
            self._values -= before.weight
            if before.n in self.origins or before.n in self.entries:
                self._follow(before, self._kept())  # as long as it is known who was given what it gave
            if not self._is_pinned(before):
                before.strip()

    def noted(self) -> list[Call]:
        """The calls whose results were the first to go wrong, in their order."""
        stood_out = {notice.call.n: notice.call for notice in self.results.notices}
        stood_out |= {slow.first.n: slow.first for slow in self.durations.slow}
        stood_out |= {each.call.n: each.call for each in self.ignored.found.values()}
        return sorted((self.origins | self.entries | stood_out | self.broken).values(), key=lambda call: call.n)

    def hold(self, call: Call) -> None:
        """Keep a call that has ended if it is among the first that broke what was declared of their operator."""
        declared = self.contracts.get(call.op)
        if declared and len(self.broken) < MOST_BROKEN and any(True for _ in breaches(declared, call)):
            self.broken[call.n] = call

    def _is_pinned(self, call: Call) -> bool:
        """Whether a call is kept however long ago it was."""
        thread = self.threads.get(call.record.tid)
        if (
            call.n in self.origins
            or call.n in self.entries
            or call.n in self.broken
            or (thread is not None and thread.raised is call)
        ):
            return True
        if self.results.notices and any(notice.call is call for notice in self.results.notices):
            return True
        slow, ignored = self.durations.slow, self.ignored
        return (bool(slow) and any(each.first is call for each in slow)) or (bool(ignored.found) and ignored.pins(call))

    def note_origin(self, writer: Writer | None) -> None:
        """Keep the call that made a value which is not finite, if it is among the first."""
        origin = writer.origin if writer is not None else None
        entered = self.find(writer.n) if writer is not None and writer.entered else None
        if entered is not None and len(self.entries) < MOST_ENTRIES:
            self.entries[entered.n] = entered
        if origin is None or origin.n in self.origins or not self._has_room():
            return
        call = self.find(origin.n)
        if call is not None:
            self.origins[origin.n] = call
            self.entries = {n: entry for n, entry in self.entries.items() if not self.encloses(call, entry)}

    def _has_room(self) -> bool:
        """Whether one more can be kept; those whose values went nowhere make room, but for the first of them."""
        if len(self.origins) >= MOST_ORIGINS and self.calls - self._followed >= FOLLOWED_EVERY:
            self.follow(SOON)
            for n in sorted(self.absorbed & self.origins.keys())[1:]:
                del self.origins[n]
        return len(self.origins) < MOST_ORIGINS

    def follow(self, most: int | None = None) -> None:
        """Look what became of the values that the first calls gave which are not finite, in all calls or so many."""
        self._followed = self.calls
        every = self._kept()
        for first in (self.origins | self.entries).values():
            if first.n in self.recent:
                self._follow(first, every, most)

    def _kept(self) -> list[Call]:
        return [call for _, call in sorted((self.recent | self.by_number).items())]

    def _follow(self, first: Call, every: list[Call], most: int | None = None) -> None:
        start = bisect_right(every, first.n, key=attrgetter("n"))
        became = fate(first, islice(every, start, start + most if most is not None else None), self.find)
        self.absorbed.discard(first.n)
        if became is Fate.ABSORBED or (became is Fate.UNREAD and self._is_usual(first)):
            self.absorbed.add(first.n)

    def _is_usual(self, first: Call) -> bool:
        """Whether as many such values of the same operator went nowhere before, as far as calls were given them."""
        known = [self.origins[n] for n in self.absorbed & self.origins.keys()]
        bad = bad_values(first)
        return any(one.op == first.op and one.n < first.n and bad_values(one) >= bad for one in known)

    def encloses(self, outer: Call, call: Call) -> bool:
        """Whether a call was made inside another one."""
        inner: Call | None = call
        while inner is not None and inner.n > outer.n:
            inner = self.find(inner.record.parent)
        return inner is outer

    def marked_call(self, n: int) -> Call | None:
        """A call that the device may have been in, if it is among those that are kept."""
        return self.marked.get(n) or self.captured.get(n)

    def op_of(self, n: int) -> str:
        """The operator of such a call."""
        call = self.marked_call(n)
        return call.op if call is not None else "a call"

    def in_flight(self) -> list[Call]:
        """The innermost call without an end of each thread, the one begun last first."""
        innermost = [thread.open[-1] for thread in self.threads.values() if thread.open]
        return sorted(innermost, key=lambda call: (call.record.t, call.n), reverse=True)

    def raised(self) -> Call | None:
        """The call that an exception left last, with nothing after it in its thread."""
        raised = [thread.raised for thread in self.threads.values() if thread.raised is not None]
        return max(raised, key=lambda call: (call.record.t, call.n), default=None)

    @property
    def ended(self) -> bool:
        """Whether it ended by itself, and not in a call that its last handlers made after it had said so."""
        end = self.end
        return end is not None and all(call.n <= end.calls for call in self.in_flight())

    @property
    def ends_recorded(self) -> bool:
        """Whether the source says when calls end; text logs below level 3 do not."""
        return self.returns > 0 or self.described or self.header is not None

    def push(self, call: Call) -> None:
        """A call has begun in its thread; those that it is not inside of have ended, and how was not recorded."""
        record = call.record
        thread = self.thread(record.tid)
        thread.raised = thread.passed = None
        stack = thread.open
        if stack and stack[-1].n != record.parent:
            self.lose(stack, _depth(stack, record.parent))
        stack.append(call)
        self.by_number[record.n] = call
        if len(stack) > MOST_OPEN:
            dropped = stack.pop(0)
            self.by_number.pop(dropped.n, None)
            dropped.state = State.UNKNOWN

    def count(self, record: schema.Call) -> None:
        """Count a call under its target and operator."""
        key = (record.target, record.op)
        counts = self.by_target
        counts[key if key in counts or len(counts) < MOST_OPERATORS else (record.target, "")] += 1

    def mark(self, call: Call) -> None:
        """Note a call that left a progress marker, or will in each replay of the graph that it was captured into."""
        self.marks.take(call.record)
        if call.record.device >= 0:
            self.marked[call.n] = call
            if len(self.marked) > MOST_MARKED:
                self.marked.popitem(last=False)
        elif len(self.captured) < MOST_CAPTURED:
            self.captured[call.n] = call

    def thread(self, tid: int) -> Thread:
        """A thread by its id; idle ones are forgotten when there are too many."""
        found = self.threads.get(tid)
        if found is None:
            if len(self.threads) >= MOST_THREADS:
                self._forget_one()
            found = self.threads[tid] = Thread()
        return found

    def close(self, n: int) -> Call | None:
        """Take a call off its thread's stack, with those inside it, whose ends were lost."""
        call = self.by_number.get(n)
        if call is None:
            return None
        stack = self.thread(call.record.tid).open
        if stack[-1] is not call:
            self.lose(stack, stack.index(call) + 1)
        del self.by_number[n]
        stack.pop()
        return call

    def lose(self, stack: list[Call], depth: int) -> None:
        """The calls from ``depth`` on have ended, and how was not recorded."""
        for call in stack[depth:]:
            call.state = State.UNKNOWN
            self.by_number.pop(call.n, None)
        del stack[depth:]

    def _forget_one(self) -> None:
        idle = (tid for tid, thread in self.threads.items() if not thread.open)
        forgotten = self.threads.pop(next(idle, next(iter(self.threads))))
        self.lose(forgotten.open, 0)


def _weight(call: Call) -> int:
    """How many values a call keeps, for the memory that it takes."""
    args, kwargs = call.record.args or (), call.record.kwargs or {}
    weight = 2 + len(args) + len(kwargs)
    for value in (*args, *kwargs.values(), call.out):
        if type(value) not in _SMALL:
            weight += _values(value)
    return weight


_SMALL = frozenset((schema.Tensor, int, float, bool, type(None)))


def _values(value: schema.Value) -> int:
    if isinstance(value, schema.Sequence):
        return 1 + sum(map(_values, value.items))
    if isinstance(value, schema.Mapping):
        return 1 + sum(map(_values, value.values))
    text = value if isinstance(value, str) else getattr(value, "repr", None) or ""
    return 1 + len(text) // _TEXT_LIKE_A_VALUE


def _depth(stack: list[Call], parent: int) -> int:
    """How many of the calls that are open a call of ``parent`` is inside of; all where that is not known."""
    numbers = [call.n for call in stack] if parent else []
    return numbers.index(parent) + 1 if parent in numbers else len(stack) if parent else 0
