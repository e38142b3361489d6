"""Records of any source as SGLang's kernel API text log prints them, call by call.

    ================================================================================
    [2026-03-19 00:47:30] SGLang Kernel API Call: RMSNorm.forward

The blocks stand in the order in which they were written; a single-threaded process's are what its own text
log holds.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from firstfault.read.events import Event, Replayed
from firstfault.read.formats.kernel_api_log import MAIN
from firstfault.record import schema, text_log

MOST_OPEN = 10_000
"""Calls whose end is awaited; a log below level 3 does not say when any ends."""
MOST_OTHERS = 5


def texts(events: Iterable[Event], printer: Printer, last: int | None) -> Iterator[str]:
    """The blocks of the calls that a printer is for.

    Args:
        events: the records.
        printer: which calls.
        last: how many of the last calls of each process; all if left out.
    """
    if last is None:
        yield from filter(None, map(printer.block, events))
        return
    kept: dict[str, dict[_Which, list[_Block]]] = {}
    for order, event in enumerate(events):
        if text := printer.block(event):
            _keep(kept.setdefault(event.process, {}), event.record, (order, text), last)
    for calls in kept.values():
        yield from (text for _, text in sorted(block for blocks in calls.values() for block in blocks))


_Block: TypeAlias = tuple[int, str]
"""When it was written, and its text."""
_Which: TypeAlias = tuple[int, int]
"""A call's number, and at which replay of its CUDA graph, 0 if it was captured into none."""


def _keep(calls: dict[_Which, list[_Block]], record: schema.Record | Replayed, block: _Block, last: int) -> None:
    """Take in a block of a call by its number, where that is one of the last."""
    if isinstance(record, (schema.Call, Replayed)):
        call = record.call if isinstance(record, Replayed) else record
        calls[call.n, call.replay if isinstance(record, Replayed) else 0] = [block]
        if len(calls) > last:
            del calls[next(iter(calls))]
    elif isinstance(record, (schema.Dump, schema.Return, schema.Raise)) and (record.n, 0) in calls:
        calls[record.n, 0].append(block)


class Printer:
    """Records → their text, for the operators that match a pattern; names the process where there are several.

    ``numbers`` adds to each block the number of its call.

    Attributes:
        matched: whether any did.
        others: some that did not.
    """

    def __init__(self, op: str, *, numbers: bool = False) -> None:
        self.matched = False
        self.others: list[str] = []
        self._pattern = op
        self._numbers = numbers
        self._ops: dict[tuple[str, int], tuple[str, int]] = {}
        self._main: tuple[int, int] | None = None
        self._pids: dict[str, int] = {}

    def block(self, event: Event) -> str:
        """The text of one record, empty where it is not asked for."""
        record = event.record
        if isinstance(record, schema.Call):
            return self._begun(event.process, record)
        if isinstance(record, Replayed):
            return self._replayed(event.process, record)
        if isinstance(record, schema.Header):
            self._pids[event.process] = record.pid
            self._main = self._main or (record.pid, record.main_tid)
        elif isinstance(record, schema.Dump) and (event.process, record.n) in self._ops:
            return text_log.dumped(record)
        elif isinstance(record, (schema.Return, schema.Raise)):
            return self._ended(event.process, record)
        return ""

    def _asked_for(self, op: str) -> bool:
        if fnmatch.fnmatchcase(op, self._pattern):
            self.matched = True
            return True
        if len(self.others) < MOST_OTHERS and op not in self.others:
            self.others.append(op)
        return False

    def _replayed(self, process: str, record: Replayed) -> str:
        call, result, dump = record
        if not self._asked_for(call.op):
            return ""
        identity = self._identity(process, call.tid, call.n)
        given = text_log.call(call, text_log.at_replay(call.graph, call.replay) + identity)
        saved = text_log.dumped(schema.Dump(call.n, "inputs", dump)) if dump else ""
        return given + saved + text_log.returned(result, identity)

    def _begun(self, process: str, record: schema.Call) -> str:
        if not self._asked_for(record.op):
            return ""
        self._ops[process, record.n] = (record.op, record.tid)
        if len(self._ops) > MOST_OPEN:
            del self._ops[next(iter(self._ops))]
        return text_log.call(record, self._identity(process, record.tid, record.n))

    def _ended(self, process: str, record: schema.Return | schema.Raise) -> str:
        op, tid = self._ops.pop((process, record.n), ("", 0))
        if not op:
            return ""
        identity = self._identity(process, tid, record.n)
        if isinstance(record, schema.Return):
            return text_log.returned(record, identity)
        return text_log.raised(record, op, identity)

    def _identity(self, process: str, tid: int, n: int) -> str:
        """The lines that say which call a block is of: its number where that is asked for, its process and thread."""
        return (text_log.numbered(n) if self._numbers else "") + self._place(process, tid)

    def _place(self, process: str, tid: int) -> str:
        """The line that names process and thread, for all but the main thread of the first process."""
        if self._main is None:  # a text log or dumps: as they name them
            named = process.removeprefix("pid ")
            return text_log.identity(int(named), tid) if process != MAIN and tid and named.isdecimal() else ""
        pid = self._pids.get(process, 0)
        return "" if (pid, tid) == self._main else text_log.identity(pid, tid)
