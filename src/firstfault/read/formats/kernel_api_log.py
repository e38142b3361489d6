"""Kernel API text logs: SGLang's own, FlashInfer's own, and ours.

    [2026-03-19 00:47:30] SGLang Kernel API Call: RMSNorm.forward
    [2026-03-19 00:47:30] FlashInfer API Call: rmsnorm

Lines of the program's own that stand between, as in a log on stdout, are passed over. A log does not number
its calls: they are numbered here in order of appearance. An output belongs to the innermost open call of
its thread; below level 3 there are no outputs, and whether a call came back is not known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from firstfault.read.events import Advance, Event, Problems
from firstfault.read.formats import values
from firstfault.record import schema

_HEAD = re.compile(
    r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] "
    r"(?:SGLang Kernel API|SGLANG Kernel API|FlashInfer API) (?P<what>Call|Exception): (?P<rest>.*)"
)
_EXCEPTION = re.compile(r"(?P<op>.*?) \((?P<type>[A-Za-z_][\w.]*): (?P<message>.*)\)?")
_ENTRY = re.compile(r"  (?P<name>[^\s=:][^=:]*?)(?:=|:(?=$))(?P<rest>.*)")
_IDENTITY = re.compile(r"  process=(\d+) thread=(\d+)")
_SECTIONS = {
    "Positional input arguments:": "args",
    "Keyword input arguments:": "kwargs",
    "Default parameters (not explicitly provided):": "ignored",
    "Output:": "output",
    "Output value:": "value",
}
_DUMPED = re.compile(r"(?:Dumped (inputs|outputs) to|(Inputs|Outputs) dumped to): (.*?)(?: \(size: .*)?")
_SKIPPED = "Tensor dump skipped: "
_SNIFFED = 2**20
_LONGEST_LINE = 2**20
_LONGEST_SECTION = 20_000

MAIN = "main"


def is_kernel_api_log(path: Path) -> bool:
    """Whether the first MiB of a file holds a call's line."""
    with path.open("rb") as file:
        return re.search(rb"(SGLang|SGLANG) Kernel API Call: |FlashInfer API Call: ", file.read(_SNIFFED)) is not None


@dataclass
class _Section:
    """The block being read: which side of a call, and its lines."""

    side: str
    lines: list[str] = field(default_factory=list)


@dataclass
class _Pending:
    """A call whose block is still being read; it is given out when the block ends."""

    record: schema.Call
    line: int
    process: str = MAIN
    given: bool = False


class KernelApiLog:
    """A text log; each identity that it names is a process."""

    kind = "kernel API log"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.problems = Problems()
        self._count = 0
        self._open: dict[str, list[tuple[int, str]]] = {}
        self._call: _Pending | None = None
        self._section: _Section | None = None

    def events(self, advance: Advance) -> Iterator[Event]:
        """Every call, return, exception and dump in the log."""
        with self.path.open("rb") as file:
            number = 0
            raw = b""
            while raw := file.readline(_LONGEST_LINE):
                number += 1
                advance(len(raw))
                yield from self._line(raw.decode("utf-8", "replace").rstrip("\r\n"), number)
                if not raw.endswith(b"\n"):
                    self.problems.add("the last line is torn")
        yield from self._flush()

    def _line(self, line: str, number: int) -> Iterator[Event]:
        first = line[:1]
        if first == " ":
            self._indented(line)
        elif first == "[" and (match := _HEAD.match(line)):
            yield from self._flush()
            yield from self._head(match, number)
        elif line in _SECTIONS:
            yield from self._begin_section(line)
        elif first == "=":
            yield from self._flush()
        elif (dump := _dump_line(line)) is not None:
            yield from self._flush()
            yield from self._dump(dump)
        elif self._section is not None and line and not line.startswith("-----"):
            self._continue(line)

    def _indented(self, line: str) -> None:
        if self._section is not None:
            if len(self._section.lines) < _LONGEST_SECTION:
                self._section.lines.append(line)
        elif self._call is not None and (match := _IDENTITY.fullmatch(line)):
            self._identify(match[1], match[2])

    def _begin_section(self, title: str) -> Iterator[Event]:
        side = _SECTIONS[title]
        if side in ("output", "value"):
            yield from self._flush()
        else:
            yield from self._end_section(0)
        self._section = _Section(side)

    def _continue(self, line: str) -> None:
        """A line without indent inside a section: the rest of a multi-line ``repr``, or the program's own."""
        assert self._section is not None
        if len(self._section.lines) < _LONGEST_SECTION:
            self._section.lines.append("        " + line)

    def _head(self, match: re.Match[str], number: int) -> Iterator[Event]:
        t = _nanoseconds(match["stamp"])
        if match["what"] == "Call":
            self._count += 1
            self._call = _Pending(schema.Call(self._count, t, match["rest"].strip()), number)
            return
        found = _EXCEPTION.fullmatch(match["rest"])
        op, kind, message = (found["op"], found["type"], found["message"]) if found else (match["rest"], "", "")
        yield from self._raise(op, schema.Raise(0, t, kind, message.removesuffix(")")), number)

    def _raise(self, op: str, record: schema.Raise, number: int) -> Iterator[Event]:
        """Close the innermost open call of that name, and those inside it, wherever it is open."""
        for process, stack in self._open.items():
            for depth in range(len(stack) - 1, -1, -1):
                if stack[depth][1] == op:
                    record.n = stack[depth][0]
                    del stack[depth:]
                    yield Event(process, record, number)
                    return
        self.problems.add("an exception line names a call that is not open")

    def _identify(self, pid: str, tid: str) -> None:
        assert self._call is not None
        self._call.process = f"{pid}/{tid}"
        self._call.record.tid = int(tid[:18])

    def _give(self) -> Iterator[Event]:
        """Give out the call whose block has ended."""
        pending, self._call = self._call, None
        if pending is None:
            return
        stack = self._open.setdefault(pending.process, [])
        pending.record.parent = stack[-1][0] if stack else 0
        stack.append((pending.record.n, pending.record.op))
        del stack[:-256]  # below level 3 nothing closes a call
        yield Event(pending.process, pending.record, pending.line)

    def _end_section(self, number: int) -> Iterator[Event]:
        """Take in the section that has ended; an output closes a call."""
        section, self._section = self._section, None
        if section is None or section.side == "ignored":
            return
        if section.side in ("args", "kwargs"):
            self._take_inputs(section)
        elif section.side == "value":
            yield from self._return(values.parse(section.lines), [], MAIN, number)
        else:
            parsed, identity = _entries(tuple(section.lines))
            mutated = parsed.pop("mutated", None)
            names = mutated.repr.split(", ") if isinstance(mutated, schema.Opaque) and mutated.repr else []
            yield from self._return(parsed.get("return"), names, identity or MAIN, number)

    def _take_inputs(self, section: _Section) -> None:
        if self._call is None:
            return
        parsed, _ = _entries(tuple(section.lines))
        if section.side == "args":
            self._call.record.args = list(parsed.values())
            self._call.record.kwargs = self._call.record.kwargs or {}
        else:
            self._call.record.args = self._call.record.args or []
            self._call.record.kwargs = parsed

    def _return(self, out: schema.Value, mutated: list[str], process: str, number: int) -> Iterator[Event]:
        stack = self._open.get(process)
        if not stack:
            self.problems.add("an output belongs to no open call (the log begins in the middle, or threads share it)")
            return
        n, _ = stack.pop()
        yield Event(process, schema.Return(n, 0, described=True, out=out, mutated=mutated), number)

    def _dump(self, record: schema.Dump) -> Iterator[Event]:
        for process, stack in self._open.items():
            if stack:
                record.n = stack[-1][0]
                yield Event(process, record)
                return

    def _flush(self) -> Iterator[Event]:
        """End whatever block is being read."""
        inputs = self._section is None or self._section.side in ("args", "kwargs", "ignored")
        if inputs:
            yield from self._end_section(0)
            yield from self._give()
        else:
            yield from self._give()
            yield from self._end_section(0)


def _dump_line(line: str) -> schema.Dump | None:
    """The line that tells of a dump, ours or a peer's, if it is one."""
    if match := _DUMPED.fullmatch(line):
        return schema.Dump(0, (match[1] or match[2]).lower(), match[3])
    if line.startswith(_SKIPPED):
        return schema.Dump(0, "inputs", skipped=line.removeprefix(_SKIPPED))
    return None


@lru_cache(maxsize=4096)
def _parse_entry(lines: tuple[str, ...]) -> schema.Value:
    return values.parse(list(lines))


def _entries(lines: tuple[str, ...]) -> tuple[dict[str, schema.Value], str]:
    """The named values of a section, and the identity line in it, if there is one."""
    found: dict[str, list[str]] = {}
    identity = ""
    current: list[str] = []
    for line in lines:
        if match := _IDENTITY.fullmatch(line):
            identity = f"{match[1]}/{match[2]}"
        elif match := _ENTRY.fullmatch(line):
            current = found.setdefault(match["name"], [])
            current.append(match["rest"])
        else:
            current.append(line)
    return {name: _parse_entry(tuple(value)) for name, value in found.items()}, identity


@lru_cache(maxsize=64)
def _nanoseconds(stamp: str) -> int:
    """Local time, as the log prints it, in nanoseconds since the epoch."""
    try:
        return int(time.mktime(datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S").timetuple())) * 10**9
    except (ValueError, OverflowError):
        return 0
