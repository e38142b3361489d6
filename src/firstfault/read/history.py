"""Records → calls: what each was given, who wrote that, and what became of it.

    history.feed(Event("vm-4242", schema.Call(7, …)))    →  None: call 7 is open
    history.feed(Event("vm-4242", schema.Return(7, …)))  →  call 7, which has returned

``History`` takes the records of any source one by one, and keeps of each process what ``Process`` says.
"""

from __future__ import annotations

from firstfault.read import earlier
from firstfault.read.calls import Call, State
from firstfault.read.events import Event, Replayed
from firstfault.read.process import MOST_OPERATORS, Process, Thread
from firstfault.read.tensors import Labelled, flattened, not_finite
from firstfault.record import schema

MOST_NOTES = 50


class History:
    """The calls of all processes of a source.

    Without ``learns`` it only tells which calls ended, on what, and who wrote that: what an index is made of.
    """

    def __init__(self, *, learns: bool = True) -> None:
        self.processes: dict[str, Process] = {}
        self._learns = learns
        self.earlier = earlier.Earlier()
        self._tensors = earlier.Tensors()

    def feed(self, event: Event) -> Call | None:
        """Take in one record; the call that it ended, if it ended one."""
        process = self.processes.get(event.process)
        if process is None:
            process = self.processes[event.process] = Process(event.process)
        record = event.record
        if isinstance(record, schema.Call):
            self._begin(process, record, event.line)
        elif isinstance(record, schema.Return):
            return self._returned(process, record)
        elif isinstance(record, schema.Raise):
            return _raised(process, record)
        elif isinstance(record, schema.Inputs):
            self._given(process, record)
        elif isinstance(record, Replayed):
            _replayed(process, record)
        else:
            _other(process, record)
        return None

    def _returned(self, process: Process, record: schema.Return) -> Call | None:
        process.marks.take(record)
        call = process.close(record.n)
        if call is None:
            return None
        process.returns += 1
        call.state = State.RETURNED
        call.out, call.out_described, call.mutated = record.out, record.described, record.mutated
        if record.t:
            call.duration = record.t - call.record.t
        thread = process.thread(call.record.tid)
        thread.raised = thread.passed = None  # whoever called it has dealt with the exception
        outputs = call.outputs()
        call.writer = process.producers.returned(call.op, record, outputs)
        if thread.open:
            thread.open[-1].outlived = True
            thread.open[-1].inside += call.duration
        if self._learns:
            self._learn(process, thread, call, outputs)
        return call

    def _learn(self, process: Process, thread: Thread, call: Call, outputs: list[Labelled]) -> None:
        """Take in what a call that came back tells of those that do not."""
        process.results.take(call, outputs)
        process.ignored.take(call, outputs)
        process.durations.take(call)
        process.hold(call)
        process.keep(call, thread)
        for _, tensor in outputs:
            if not_finite(tensor):
                process.note_origin(call.writer)
        self.earlier.learn(call.record, call.given)

    def _begin(self, process: Process, record: schema.Call, line: int) -> None:
        call = Call(process.name, record, line)
        process.push(call)
        self._link(process, call)
        process.calls += 1
        if not self._learns:
            return
        process.count(record)
        process.described = process.described or record.args is not None
        if record.device >= 0 or record.graph:
            process.mark(call)

    def _given(self, process: Process, record: schema.Inputs) -> None:
        """Take in arguments that came after their call."""
        call = process.by_number.get(record.n)
        if call is not None:
            call.record.args = record.args or call.record.args or []
            call.record.kwargs = (call.record.kwargs or {}) | record.kwargs
            process.described = True
            self._link(process, call)

    def _link(self, process: Process, call: Call) -> None:
        """Find out which calls wrote what a call was given."""
        if call.record.args is None:
            return
        call.given = self._tensors.of(call.record)
        call.links = links = process.producers.begin(call.record, call.given)
        for writer in links.givers:
            process.note_origin(writer)


def _replayed(process: Process, record: Replayed) -> None:
    """A captured call as it ran at the last replay, in the place of what was recorded of it before."""
    if record.call.n not in process.captured:
        return
    call = process.captured[record.call.n] = Call(process.name, record.call)
    call.state = State.RETURNED
    call.out, call.out_described, call.mutated = record.result.out, record.result.described, record.result.mutated
    call.dump = record.dump
    call.given = flattened(call.inputs())
    call.links = process.producers.seen(call.given)
    process.hold(call)


def _raised(process: Process, record: schema.Raise) -> Call | None:
    process.marks.take(record)
    call = process.close(record.n)
    if call is None:
        return None
    process.raises += 1
    call.state = State.RAISED
    call.exception, call.message = record.exception, record.message
    process.producers.forget(call.n)
    process.hold(call)
    thread = process.thread(call.record.tid)
    if call.ended_as_meant:
        thread.raised = thread.passed = None
    else:
        thread.raised = thread.raised or call  # on its way through enclosing calls it began in the innermost
        thread.passed = call
    process.keep(call, thread)
    return call


def _other(process: Process, record: schema.Record) -> None:
    """A record that begins or ends no call."""
    if isinstance(record, schema.Dump):
        _dumped(process, record)
    elif isinstance(record, schema.Note):
        if record.code in process.notes or len(process.notes) < MOST_NOTES:
            process.notes[record.code] = record
    elif isinstance(record, schema.Target):
        if record.name in process.targets or len(process.targets) < MOST_NOTES:
            process.targets[record.name] = record
    elif isinstance(record, schema.Contract):
        if len(process.contracts) < MOST_OPERATORS:
            process.contracts.setdefault(record.op, []).append(record)
    elif isinstance(record, schema.Header):
        process.header = process.header or record
    elif isinstance(record, schema.End):
        process.end = record


def _dumped(process: Process, record: schema.Dump) -> None:
    call = process.by_number.get(record.n)
    if record.skipped is None:
        process.dumps += 1
        if call is not None:
            call.dump = record.path
        return
    if call is not None:
        call.dump_skipped = record.skipped
    if record.skipped in process.dumps_skipped or len(process.dumps_skipped) < MOST_NOTES:
        process.dumps_skipped[record.skipped] = process.dumps_skipped.get(record.skipped, 0) + 1
