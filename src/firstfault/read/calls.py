"""Records → calls: what each was given, what became of it, and what each thread was in at the end.

``History`` takes the records of any source one by one and keeps a bounded amount of them: the calls that
are open, the last that ended, and for each operator what its earlier calls looked like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from firstfault.read.events import Event
from firstfault.record import schema

LAST_CALLS = 10
_MOST_OPEN = 256
_MOST_OPERATORS = 10_000


class State(str, Enum):
    """What became of a call."""

    IN_FLIGHT = "in flight"
    RETURNED = "returned"
    RAISED = "raised"
    UNKNOWN = "not known"


@dataclass(eq=False)
class Call:
    """One call, as far as it was recorded."""

    process: str
    record: schema.Call
    line: int = 0
    state: State = State.IN_FLIGHT
    out: schema.Value = None
    out_described: bool = False
    mutated: list[str] = field(default_factory=list)
    exception: str = ""
    message: str = ""
    dump: str = ""
    dump_skipped: str = ""
    duration: int = 0

    @property
    def n(self) -> int:
        """Its number."""
        return self.record.n

    @property
    def op(self) -> str:
        """Its operator."""
        return self.record.op

    def inputs(self) -> Iterator[tuple[str, schema.Value]]:
        """Its arguments by name, ``arg[0]`` for positional ones."""
        for index, value in enumerate(self.record.args or ()):
            yield f"arg[{index}]", value
        yield from (self.record.kwargs or {}).items()


def tensors(label: str, value: schema.Value) -> Iterator[tuple[str, schema.Tensor]]:
    """The tensors in a value, with the path to each."""
    if isinstance(value, schema.Tensor):
        yield label, value
    elif isinstance(value, schema.Sequence):
        for index, item in enumerate(value.items):
            yield from tensors(f"{label}[{index}]", item)
    elif isinstance(value, schema.Mapping):
        for key, item in zip(value.keys, value.values, strict=False):
            yield from tensors(f"{label}.{key}" if value.fields else f"{label}[{key}]", item)


@dataclass
class Layouts:
    """What the tensors in one place of an operator's earlier calls had in common.

    Attributes:
        count: how many calls.
        dims: each dimension's extent where all agreed, else None; None as a whole where the rank varied.
        dtypes, devices: those seen.
        always_contiguous: whether all were.
        largest: the most bytes of one.
    """

    count: int = 0
    dims: list[int | None] | None = None
    dtypes: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    always_contiguous: bool = True
    largest: int = 0

    def add(self, tensor: schema.Tensor) -> None:
        """Take in one more."""
        shape = tensor.shape
        if self.count == 0:
            self.dims = list(shape)
        elif self.dims is not None and len(self.dims) == len(shape):
            self.dims = [known if known == extent else None for known, extent in zip(self.dims, shape, strict=True)]
        else:
            self.dims = None
        self.count += 1
        self.dtypes.add(tensor.dtype)
        self.devices.add(tensor.device)
        self.always_contiguous &= tensor.contiguous
        self.largest = max(self.largest, tensor.nbytes)


@dataclass
class Process:
    """One process: where its threads stood, and how it ended."""

    name: str
    header: schema.Header | None = None
    end: schema.End | None = None
    calls: int = 0
    returns: int = 0
    open: dict[int, list[Call]] = field(default_factory=dict)
    last: dict[int, deque[Call]] = field(default_factory=dict)
    raised: Call | None = None
    notes: dict[str, schema.Note] = field(default_factory=dict)
    dumps_skipped: dict[str, int] = field(default_factory=dict)
    by_number: dict[int, Call] = field(default_factory=dict)

    def in_flight(self) -> list[Call]:
        """The innermost call without an end of each thread, the one begun last first."""
        innermost = [stack[-1] for stack in self.open.values() if stack]
        return sorted(innermost, key=lambda call: (call.record.t, call.n), reverse=True)

    @property
    def ends_recorded(self) -> bool:
        """Whether the source says when calls end; text logs below level 3 do not."""
        return (
            self.returns > 0
            or self.header is not None
            or any(call.record.args is not None for stack in self.open.values() for call in stack)
        )


class History:
    """The calls of all processes of a source."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.layouts: dict[tuple[str, str], Layouts] = {}

    def feed(self, event: Event) -> Call | None:
        """Take in one record; the call that it ended, if it ended one."""
        process = self.processes.setdefault(event.process, Process(event.process))
        record = event.record
        if isinstance(record, schema.Call):
            self._begin(process, record, event.line)
        elif isinstance(record, schema.Return):
            return self._returned(process, record)
        elif isinstance(record, schema.Raise):
            return self._raised(process, record)
        elif isinstance(record, schema.Dump):
            _dumped(process, record)
        elif isinstance(record, schema.Note):
            process.notes[record.code] = record
        elif isinstance(record, schema.Header):
            process.header = process.header or record
        elif isinstance(record, schema.End):
            process.end = record
        return None

    def _begin(self, process: Process, record: schema.Call, line: int) -> None:
        call = Call(process.name, record, line)
        stack = process.open.setdefault(record.tid, [])
        stack.append(call)
        process.by_number[record.n] = call
        process.calls += 1
        if len(stack) > _MOST_OPEN:
            dropped = stack.pop(0)
            process.by_number.pop(dropped.n, None)
            dropped.state = State.UNKNOWN
            self._keep(process, dropped)

    def _returned(self, process: Process, record: schema.Return) -> Call | None:
        call = _close(process, record.n)
        if call is None:
            return None
        process.returns += 1
        call.state = State.RETURNED
        call.out, call.out_described, call.mutated = record.out, record.described, record.mutated
        call.duration = record.t - call.record.t if record.t else 0
        self._keep(process, call)
        self._learn(call)
        return call

    def _raised(self, process: Process, record: schema.Raise) -> Call | None:
        call = _close(process, record.n)
        if call is None:
            return None
        process.returns += 1
        call.state = State.RAISED
        call.exception, call.message = record.exception, record.message
        self._keep(process, call)
        inner = process.raised
        if inner is None or (inner.exception, inner.message) != (call.exception, call.message):
            process.raised = call  # the same exception passing through enclosing calls began in the innermost
        return call

    def _keep(self, process: Process, call: Call) -> None:
        process.last.setdefault(call.record.tid, deque(maxlen=LAST_CALLS)).append(call)

    def _learn(self, call: Call) -> None:
        for label, value in call.inputs():
            for path, tensor in tensors(label, value):
                if len(self.layouts) < _MOST_OPERATORS or (call.op, path) in self.layouts:
                    self.layouts.setdefault((call.op, path), Layouts()).add(tensor)


def _close(process: Process, n: int) -> Call | None:
    """Take a call off its thread's stack."""
    call = process.by_number.pop(n, None)
    if call is None:
        return None
    stack = process.open.get(call.record.tid, [])
    if call in stack:
        depth = stack.index(call)
        for left in stack[depth + 1 :]:  # their ends were lost: an outer call has come back
            left.state = State.UNKNOWN
            process.by_number.pop(left.n, None)
        del stack[depth:]
    return call


def _dumped(process: Process, record: schema.Dump) -> None:
    call = process.by_number.get(record.n)
    if call is None:
        return
    if record.skipped is None:
        call.dump = record.path
    else:
        call.dump_skipped = record.skipped
        process.dumps_skipped[record.skipped] = process.dumps_skipped.get(record.skipped, 0) + 1
