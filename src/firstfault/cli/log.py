"""``firstfault log PATH``."""

from __future__ import annotations

import fnmatch
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.progress import advancing
from firstfault.errors import ExitCode, UsageError
from firstfault.read.events import Event
from firstfault.read.formats.recording import Recording
from firstfault.record import schema, text_log

POLL_SECONDS = 0.2


def command(
    path: Annotated[Path, typer.Argument(help="A recording, a kernel API text log, or a dump folder.")],
    op: Annotated[str, typer.Option(help="Only calls whose operator matches this shell-style pattern.")] = "*",
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many calls of each process.")] = None,
    follow: Annotated[bool, typer.Option(help="Go on as records are written, until Ctrl-C.")] = False,
) -> None:
    """Print the calls in SGLang's kernel API text format.

    Exits with 0 when everything was read, 3 when some of it could not be, 2 when nothing could.
    """
    from firstfault.read.session import open_source

    source = open_source(path)
    if follow:
        if not isinstance(source, Recording):
            raise UsageError(f"--follow needs a recording; {path} is a {source.kind}: use tail -f on a text log")
        _follow(source, op)
    with advancing(path) as advance:
        for text in _texts(source.events(advance), op, last):
            sys.stdout.write(text)
    for problem in source.problems.lines():
        print(f"firstfault: {problem}", file=sys.stderr)
    raise typer.Exit(ExitCode.INCOMPLETE if source.problems.counts else ExitCode.OK)


def _texts(events: Iterator[Event], op: str, last: int | None) -> Iterator[str]:
    """The blocks of the calls that are asked for, in the order they were written."""
    printer = _Printer(op)
    if last is None:
        yield from filter(None, map(printer.block, events))
        return
    kept: dict[str, deque[str]] = {}
    for event in events:
        text = printer.block(event)
        if not text:
            continue
        blocks = kept.setdefault(event.process, deque(maxlen=last))
        if isinstance(event.record, schema.Call) or not blocks:
            blocks.append(text)
        else:
            blocks[-1] += text
    for blocks in kept.values():
        yield from blocks


class _Printer:
    """Records → their text, for the operators that match a pattern; names the process where there are several."""

    def __init__(self, op: str) -> None:
        self._pattern = op
        self._ops: dict[tuple[str, int], tuple[str, int]] = {}
        self._main: tuple[int, int] | None = None
        self._pids: dict[str, int] = {}

    def block(self, event: Event) -> str:
        """The text of one record, empty where it is not asked for."""
        record = event.record
        if isinstance(record, schema.Header):
            self._pids[event.process] = record.pid
            self._main = self._main or (record.pid, record.main_tid)
        if isinstance(record, schema.Call):
            if not fnmatch.fnmatch(record.op, self._pattern):
                return ""
            self._ops[event.process, record.n] = (record.op, record.tid)
            return text_log.call(record, self._identity(event.process, record.tid))
        if isinstance(record, schema.Dump) and (event.process, record.n) in self._ops:
            return text_log.dumped(record)
        return self._end(event)

    def _end(self, event: Event) -> str:
        record = event.record
        if not isinstance(record, (schema.Return, schema.Raise)):
            return ""
        op, tid = self._ops.pop((event.process, record.n), ("", 0))
        if not op:
            return ""
        identity = self._identity(event.process, tid)
        if isinstance(record, schema.Return):
            return text_log.returned(record, identity)
        return text_log.raised(record, op, identity)

    def _identity(self, process: str, tid: int) -> str:
        pid = self._pids.get(process, 0)
        return "" if self._main is None or (pid, tid) == self._main else text_log.identity(pid, tid)


def _follow(recording: Recording, op: str) -> None:
    """Print what is there, then what is added."""
    printer = _Printer(op)
    for events in recording.follow():
        for event in events:
            sys.stdout.write(printer.block(event))
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)
