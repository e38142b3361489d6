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
from functools import lru_cache
from pathlib import Path

from firstfault.read.events import Advance, Event, Problems
from firstfault.read.files import open_regular
from firstfault.read.formats.log_steps import Dumped, Gave, Given, Identity, Named, Nameless, Raised, Step, steps
from firstfault.read.formats.text_blocks import Unit, units
from firstfault.record import layout, schema

MAIN = "main"
"""The process of a call that does not name one: the log's own."""
FLASHINFER = "flashinfer"
"""Target of the calls in FlashInfer's log, which says nothing of exceptions."""
NAMELESS = "(tensors without their call)"
"""The operator of what was pasted without the line that names its call."""

_OWN: Identity = (MAIN, 0)
_CALL = re.compile(
    rb"(?:SGLang|SGLANG) Kernel API Call: |FlashInfer API Call: |^[ \t]{0,16}(?:arg\[0\]=)?Tensor\(", re.MULTILINE
)
_ENDS_IN_A_NAME = re.compile(r"API Call: \S*\Z")
_SNIFFED = 64 * 2**20
_SNIFFED_AT_ONCE = 2**20
_OVERLAP = 64
_MOST_OPEN = 256
_MOST_STACKS = 4096


def is_kernel_api_log(path: Path) -> bool:
    """Whether the first 64 MiB of a file hold a call's line, or a tensor as such a log prints it.

    Raises:
        UnreadableInput: it cannot be opened, or is no regular file.
    """
    with open_regular(path) as file:
        seen, read = b"", 0
        while read < _SNIFFED and (chunk := file.read(_SNIFFED_AT_ONCE)):
            seen = seen[-_OVERLAP:] + chunk
            if _CALL.search(seen):
                return True
            read += len(chunk)
    return False


class KernelApiLog:
    """A text log; each process that it names is one, and what names none is of the log's own."""

    kind = "kernel API log"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self._count = 0
        self._describes = False
        self._open: dict[Identity, list[tuple[int, str]]] = {}
        self._call: tuple[schema.Call, int, Identity] | None = None
        self._early_dumps: dict[str, schema.Dump] = {}
        self._last = False
        self._torn = False
        self._ready: list[Event] = []

    def events(self, advance: Advance) -> Iterator[Event]:
        """Every call, return, exception and dump in the log."""
        ready = self._ready
        with open_regular(self.path) as file:
            before: Unit | None = None
            for unit in units(file, advance, self.problems):
                if before is not None:
                    self._take(before)
                    yield from ready
                    ready.clear()
                before = unit
        if before is not None:
            self._last = True
            self._torn = not before.text.endswith("\n") and before.text != ""
            self._take(_marked(before) if self._torn else before)
        self._give_call()
        yield from ready
        if self._torn:
            self.problems.add("the last line is torn")

    def _take(self, unit: Unit) -> None:
        """The steps of a unit, one after the other."""
        stamp, found = steps(unit.text)
        for step in found:
            if type(step) is Named:
                self._begin(step, step.stamp or stamp, unit.line)
            elif type(step) is Given:
                self._give(step)
            elif type(step) is Gave:
                self._return(step, unit.line)
            else:
                self._rarer(step, stamp, unit.line)
        if unit.ended:
            self._give_call()

    def _rarer(self, step: Step, stamp: str, line: int) -> None:
        self._give_call()
        if isinstance(step, Dumped):
            self._dump(step)
        elif isinstance(step, Raised):
            self._raise(step, step.stamp or stamp, line)
        elif isinstance(step, Nameless) and self._count == 0:
            self._begin(Named(step.line, NAMELESS, "", False, None), stamp, line)
            self._give(Given(step.args, None, True))

    def _begin(self, step: Named, stamp: str, line: int) -> None:
        self._give_call()
        self._count += 1
        identity = _OWN if step.identity is None else self._known(step.identity)
        target = FLASHINFER if step.flashinfer else "boundary"
        call = schema.Call(self._count, _nanoseconds(stamp) if stamp else 0, step.op, target, 0, identity[1])
        self._call = (call, line + step.line, identity)

    def _give(self, step: Given) -> None:
        self._describes = True
        self._check_whole(step.whole)
        if step.identity is not None and not (self._call and self._call[2] in _whose(step.identity)):
            self._give_later(step, step.identity)
            return
        if self._call is None:
            return
        call = self._call[0]
        call.args = step.args if step.args is not None else call.args or []
        call.kwargs = step.kwargs if step.kwargs is not None else call.kwargs or {}

    def _give_later(self, step: Given, identity: Identity) -> None:
        """Arguments that another thread's call stands before are those of the call that their own thread began last."""
        self._give_call()
        for whose in _whose(identity):
            if stack := self._open.get(whose):
                self._ready.append(Event(whose[0], schema.Inputs(stack[-1][0], step.args or [], step.kwargs or {})))
                return

    def _give_call(self) -> None:
        """Give out the call whose arguments have all been read."""
        if self._call is None:
            return
        (call, line, identity), self._call = self._call, None
        stack = self._open.get(identity)
        if stack is None:
            stack = self._open[identity] = []
        if call.target == FLASHINFER:
            forget_lost(stack, call.op)
        if self._describes and stack:
            call.parent = stack[-1][0]
        stack.append((call.n, call.op))
        if len(stack) > _MOST_OPEN:  # below level 3 nothing closes a call
            del stack[0]
        self._ready.append(Event(identity[0], call, line))
        if self._early_dumps and (early := self._early_dumps.pop(_file_name(call.op), None)) is not None:
            early.n = call.n
            self._ready.append(Event(identity[0], early))

    def _return(self, step: Gave, line: int) -> None:
        self._describes = True
        self._give_call()
        self._check_whole(step.whole)
        identity = step.identity or _OWN
        stack = self._open.get(identity)
        if not stack:
            self.problems.add("an output belongs to no open call (the log begins in the middle, or threads share it)")
            return
        n, _ = stack.pop()
        record = schema.Return(n, 0, described=True, out=step.out, mutated=step.mutated)
        self._ready.append(Event(identity[0], record, line + step.line))

    def _raise(self, step: Raised, stamp: str, line: int) -> None:
        """Close the innermost open call of the exception's operator, and those inside it, wherever it is open."""
        record = schema.Raise(0, _nanoseconds(stamp) if stamp else 0, step.exception, step.message)
        for identity in [step.identity] if step.identity else list(self._open):
            stack = self._open.get(identity, [])
            for depth in range(len(stack) - 1, -1, -1):
                if stack[depth][1] == step.op or (self._torn and stack[depth][1].startswith(step.op)):
                    record.n = stack[depth][0]
                    del stack[depth:]
                    self._ready.append(Event(identity[0], record, line + step.line))
                    return
        self.problems.add("an exception line names a call that is not open")

    def _dump(self, step: Dumped) -> None:
        """A dump belongs to the innermost open call of the operator that its folder names."""
        named = layout.parse_dump_name(Path(step.path).name) if step.path else None
        record = schema.Dump(0, step.side, step.path, skipped=step.skipped)
        if step.early and named:
            if step.side == "inputs" and len(self._early_dumps) < _MOST_OPEN:
                self._early_dumps[named[2]] = record
            return
        for identity, stack in self._open.items():
            for n, op in reversed(stack):
                if named is None or _file_name(op) == named[2]:
                    record.n = n
                    self._ready.append(Event(identity[0], record))
                    return

    def _known(self, identity: Identity) -> Identity:
        """The thread that a call names, unless the log names more than are kept apart."""
        if identity in self._open or len(self._open) < _MOST_STACKS:
            return identity
        self.problems.add(f"calls of more than {_MOST_STACKS} threads are taken for those of one")
        return (MAIN, -1)

    def _check_whole(self, whole: bool) -> None:
        if self._last and not whole:
            self.problems.add("the last block is torn: the log ends in the middle of a value")


def _marked(unit: Unit) -> Unit:
    """The last unit of a torn log; a name that the end of the file may have cut short says so."""
    return unit._replace(text=unit.text + "…") if _ENDS_IN_A_NAME.search(unit.text) else unit


def _whose(identity: Identity) -> tuple[Identity, ...]:
    """What a thread that arguments name may be called where its calls begin: the log's own has no name there."""
    return (identity, _OWN) if identity[0] == f"pid {identity[1]}" else (identity,)


def forget_lost(stack: list[tuple[int, str]], op: str) -> None:
    """FlashInfer's APIs do not call themselves: one that is open still has ended in an exception."""
    for depth, (_, name) in enumerate(stack):
        if name == op:
            del stack[depth:]
            return


@lru_cache(maxsize=1024)
def _file_name(op: str) -> str:
    """An operator as the name of its dump spells it."""
    named = layout.parse_dump_name(layout.dump_name("20260101_000000_000", 0, op, 1))
    return named[2] if named else op


@lru_cache(maxsize=64)
def _nanoseconds(stamp: str) -> int:
    """Local time, as the log prints it, in nanoseconds since the epoch."""
    try:
        return int(time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"))) * 10**9
    except (ValueError, OverflowError):
        return 0
