"""The answer of ``firstfault trace``: one call's arguments, upstream and downstream, as plain structures.

{"version": 1, "call": 6, "op": "moe_align", "upstream": [{"depth": 0, "argument": "arg[0]", "writer": 5, …}], …}
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from firstfault.diagnose import lineage
from firstfault.errors import UsageError
from firstfault.read.calls import Call
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.read.indexed import Indexed

TRACE_VERSION = 1
MOST_NAMED = 12


class Passed(msgspec.Struct):
    """A call that passed a value on."""

    call: int
    op: str


class Upstream(msgspec.Struct, omit_defaults=True):
    """One argument of one call, and the call that wrote it last.

    Attributes:
        depth: calls away from the one that was asked for.
        writer, writer_op, writer_site: the call that wrote it; 0 where no recorded call is known to have.
        how: by what it was recognised.
        since: what became of the value after it.
        through: the calls that passed it on after that one, the nearest first.
        kept: whether what that call was given is still known, or was shown above.
    """

    depth: int
    call: int
    op: str
    argument: str
    value: schema.Tensor
    writer: int = 0
    writer_op: str = ""
    writer_site: str = ""
    how: str = ""
    since: str = ""
    kept: bool = False
    again: bool = False
    through: list[Passed] = []


class Downstream(msgspec.Struct, omit_defaults=True):
    """A call that was given what the call, or one that it had gone into, wrote."""

    depth: int
    call: int
    op: str
    argument: str
    value: schema.Tensor
    writer: int
    how: str
    site: str = ""


class Trace(msgspec.Struct, omit_defaults=True):
    """The whole answer; ``outputs`` are what the call gave, by name."""

    version: int
    source: str
    process: str
    call: int
    op: str
    site: str = ""
    upstream: list[Upstream] = []
    outputs: dict[str, schema.Tensor] = {}
    downstream: list[Downstream] = []
    cut: bool = False
    problems: list[str] = []


def trace(
    events: Iterable[Event], n: int, *, argument: str | None, down: bool, source: str, whole: bool = False
) -> Trace:
    """Follow what a call was given to where it came from, and with ``down`` what it gave to where it went.

    Args:
        events: the records of one process, up to the call and with ``down`` beyond it.
        n: the call's number.
        argument: only this one, ``0`` or ``arg[0]`` or by its name; all if None.
        down: whether to follow its results too.
        source: where the records are from.
        whole: whether calls that only pass a value on are steps of their own.

    Raises:
        UsageError: there is no such call or argument, or the call's arguments were not recorded.
    """
    history = History()
    found: Trace | None = None
    uses = lineage.Downstream(n)
    call: Call | None = None
    for event in events:
        ended = history.feed(event)
        record = event.record
        if call is None and isinstance(record, (schema.Call, schema.Inputs)) and record.n == n:
            call = history.processes[event.process].by_number[n]
            found = _upstream(history.processes[event.process], call, argument, source, whole)
        elif ended is not None and ended is call and found is not None:
            found.outputs = dict(call.outputs())
            if not down:
                break
        elif found is not None and down and isinstance(record, schema.Call):
            found.downstream += _uses(uses, history.processes[event.process].by_number.get(record.n))
            if uses.full:
                found.cut = True
                break
    if found is None:
        raise UsageError(_no_such_call(sum(process.calls for process in history.processes.values()), n))
    return found


def trace_indexed(
    process: Indexed, n: int, *, argument: str | None, down: bool, source: str, whole: bool = False
) -> Trace:
    """The same from an index: what it takes does not grow with the record, and nothing in it is too far back.

    Raises:
        UsageError: there is no such call or argument, or the call's arguments were not recorded.
    """
    call = process.find(n)
    if call is None:
        raise UsageError(_no_such_call(process.calls, n))
    found = _upstream(process, call, argument, source, whole)
    found.outputs = dict(process.outputs(n))
    if down:
        _follow(process, n, found)
    return found


def _follow(process: Indexed, n: int, found: Trace) -> None:
    """Add the calls that what a call wrote went into, in the order that they began in."""
    uses = lineage.Downstream(n)
    waiting, seen = process.readers(n, lineage.MOST_STEPS), {n}
    while waiting and not uses.full:
        at = heappop(waiting)
        if at in seen:
            continue
        seen.add(at)
        found.downstream += _uses(uses, process.find(at))
        for reader in process.readers(at, lineage.MOST_STEPS):
            heappush(waiting, reader)
    found.cut = found.cut or uses.full


def _upstream(process: Process | Indexed, call: Call, argument: str | None, source: str, whole: bool) -> Trace:
    labels = _chosen(call, argument)
    steps = list(lineage.upstream(process, call, labels, whole=whole))
    made = [_step(process, step) for step in steps]
    cut = len(steps) == lineage.MOST_STEPS
    return Trace(TRACE_VERSION, source, process.name, call.n, call.op, call.record.site, upstream=made, cut=cut)


def _chosen(call: Call, argument: str | None) -> set[str]:
    """The tensors that an argument holds, or all."""
    every = [label for label, _ in call.given]
    if call.record.args is None:
        raise UsageError(
            f"the arguments of {call.op} (call {call.n}) were not recorded; record at --level 3 for addresses, "
            "at 5 for values too"
        )
    if argument is None:
        return set(every)
    name = f"arg[{argument}]" if argument.isdecimal() else argument
    chosen = {label for label in every if label == name or label.startswith((f"{name}[", f"{name}."))}
    if not chosen:
        has = f"it has {', '.join(every[:MOST_NAMED])}" if every else "it has none"
        raise UsageError(f"{call.op} (call {call.n}) was given no tensor as {name}; {has}")
    return chosen


def _step(process: Process | Indexed, step: lineage.Step) -> Upstream:
    made = Upstream(step.depth, step.n, step.op, step.label, step.tensor, kept=step.known, again=step.again)
    made.through = [Passed(link.writer.n, link.writer.op) for link in step.through]
    if step.link is not None:
        writer = process.find(step.link.writer.n)
        made.writer, made.writer_op = step.link.writer.n, step.link.writer.op
        made.writer_site = writer.record.site if writer is not None else ""
        made.how, made.since = step.link.how.value, step.link.since
    return made


def _uses(uses: lineage.Downstream, call: Call | None) -> list[Downstream]:
    given = dict(call.given) if call is not None else {}
    return [
        Downstream(
            use.depth,
            use.call.n,
            use.call.op,
            use.label,
            given[use.label],
            use.link.writer.n,
            use.link.how.value,
            use.call.record.site,
        )
        for use in (uses.take(call) if call is not None else ())
    ]


def _no_such_call(calls: int, n: int) -> str:
    return f"there is no call {n}: {calls} calls are recorded; firstfault log --numbers PATH lists them"
