"""The process's recorder: a call begins, returns or raises → records to every writer, in that order.

    call = begin("RMSNorm.forward", "boundary", args, kwargs)
    …
    call.returned(result)        or        call.raised(error)

``begin`` answers None where a call is not recorded: when it is made by recording itself. None of them
raises what went wrong in recording.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import multiprocessing.util
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from firstfault import settings
from firstfault.capture import (
    called,
    compiled,
    contracts,
    coverage,
    describe,
    dump,
    graphs,
    guard,
    in_place,
    open_call,
    progress,
    stats,
    text_only,
    writers,
)
from firstfault.capture.black_box import BlackBox
from firstfault.capture.in_c import InC
from firstfault.capture.metadata import Metadata
from firstfault.capture.named_calls import NamedCalls
from firstfault.capture.open_call import OpenCall, Thread
from firstfault.capture.sites import site_of_caller
from firstfault.capture.values import Values
from firstfault.errors import NanFound
from firstfault.record import schema
from firstfault.record.plain import plain_text
from firstfault.record.sinks.ring import Ring
from firstfault.record.sinks.segments import Segments
from firstfault.record.statistics_page import INPUTS, OUTPUTS
from firstfault.settings import Level, Settings


class _Threads(threading.local):
    """The current thread's state, behind one look-up: a thread-local costs ten times an attribute."""

    def __init__(self) -> None:
        self.current = Thread() if compiled.crossing is None else compiled.crossing.Thread()


class Counter:
    """Numbers calls."""

    def __init__(self) -> None:
        self.last = 0
        self._count = itertools.count(1)

    def next(self) -> int:
        """The number of a call that begins."""
        n = self.last = next(self._count)
        return n


class Recorder:
    """The recording of one process: its numbering, its writers, its dumps."""

    def __init__(self, chosen: Settings) -> None:
        # Plain flags: a comparison of enum members costs a microsecond where the code is cold.
        self.describes = chosen.level >= Level.METADATA
        self.hidden = guard.reading if chosen.level >= Level.STATISTICS else guard.unseen
        self.threads = _Threads()
        self._pid = os.getpid()
        self.closed = False
        """Whether this process was forked from the one that it records."""
        self.numbers = Counter() if compiled.crossing is None else compiled.crossing.Counter()
        self.writers: list[writers.Writer] = []
        self._record: writers.RecordWriter | None = None
        folder = None
        self.text = writers.open_text(chosen)
        if self.text is not None:
            self.writers.append(self.text)
        self.short: text_only.TextOnly | BlackBox | None = None
        """The short way of a call, where what is recorded allows one."""
        self.in_c: InC | None = None
        """What writes calls in C, where that is built and what is recorded allows it."""
        self._metadata: Metadata | None = None
        """The same, where it describes them."""
        if (opened := writers.open_record(chosen)) is not None:
            self._record, folder = opened
            self.writers.append(self._record)
            sink = self._record.sink
            if compiled.crossing is not None and self.text is None and isinstance(sink, Segments):
                if chosen.level == Level.NAMES:
                    self.in_c = NamedCalls(self, self._record, sink)
                elif chosen.level == Level.METADATA or (chosen.may_defer_statistics and not chosen.stop_on_nan):
                    self.in_c = self._metadata = Metadata(self, self._record, sink)
            if isinstance(sink, Ring) and self.text is None and chosen.level == Level.METADATA:
                self.short = self.in_c = BlackBox(self, self._record, sink)
        self.dumper: dump.Dumper | None = None
        if chosen.level >= Level.DUMPS:
            self.dumper = dump.Dumper(writers.dump_folder(chosen, folder), chosen, self._pid)
        self._folder = folder
        self._told: dict[str, coverage.Attached] = {}
        """How the targets stood when that was last written."""
        self.markers: progress.Markers | None = None
        self._wants_markers = folder is not None
        self._opening_markers = threading.Lock()
        self._in_graphs = chosen.in_graphs
        self.contracts = contracts.Contracts(folder)
        self._reads_all = chosen.level >= Level.STATISTICS
        self._may_read = self.describes and folder is not None and self.text is None
        self._chosen = chosen
        self.values: Values | None = None
        """What reads tensors: all from level 5 on, at level 3 those that a contract is about, once there are any."""
        if self._reads_all:
            self.values = Values(chosen, folder, self.dumper, self.note, self.dumped, self._metadata)
        if self.text is not None and self._record is None and not chosen.stop_on_nan:
            self.short = text_only.of_level(chosen.level, self.text)
        self.tell_targets()

    def begin(
        self,
        thread: Thread,
        op: str,
        target: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        graph: int,
        collective: schema.Collective | None,
        called: open_call.Called = open_call.NOT_TOLD,
    ) -> OpenCall:
        """Write that a call begins, and save its inputs at level 10."""
        n = self.numbers.next()
        calls = thread.calls
        record = schema.Call(n, time.time_ns(), op, target, open_call.parent_in(calls), thread.tid)
        record.collective = collective
        if self._record is not None:
            record.site = site_of_caller()
        call = OpenCall(self, n, op, thread, args, kwargs)
        call.called = called
        markers = self.markers or self.open_markers()
        if markers is not None:
            call.markers = markers
            record.device, record.stream, record.graph = markers.place(graph)
            if graph and self.values is not None:
                call.replay = self.values.replay(graph, record)
        calls.append(call)
        if not self.describes:
            for writer in self.writers:
                writer.call(record)
        else:
            with self.hidden():
                self._describe_inputs(call, record, args, kwargs)
        if markers is not None:
            markers.begin(record)
        if call.replay is not None:
            call.replay.start()
        return call

    def open_markers(self) -> progress.Markers | None:
        """The marker page, once the program uses CUDA; one note where it cannot be had."""
        if not self._wants_markers or not torch.cuda.is_initialized():
            return None
        with self._opening_markers:
            return self.markers or self._try_markers()

    def _try_markers(self) -> progress.Markers | None:
        try:
            assert self._folder is not None
            markers = progress.open_markers(self._folder, in_graphs=self._in_graphs)
            if markers is not None:  # else not just now: tried again at the next call
                graphs.install(_graph_hooks())
                self.use_markers(markers)
        except (progress.MarkersUnavailable, OSError) as reason:
            self.use_markers(None)
            self.note("markers", f"no progress markers: {reason}")
        return self.markers

    def use_markers(self, markers: progress.Markers | None) -> None:
        """Write markers from now on; or never, for None."""
        self._wants_markers = False
        self.markers = markers
        if self.in_c is not None:
            self.in_c.use_markers(markers)

    def note(self, code: str, message: str, count: int = 1) -> None:
        """Write a note into the recording, on what has been so ``count`` times."""
        record = schema.Note(time.time_ns(), code, message, count=count)
        for writer in self.writers:
            writer.note(record)

    def tell_targets(self) -> None:
        """Write how the targets stand that have changed since that was last written."""
        if self._record is None:
            return
        for name, now in list(coverage.targets.items()):
            if self._told.get(name) != now:
                self._told[name] = dataclasses.replace(now)
                self._record.target(
                    schema.Target(time.time_ns(), name, now.library, now.version, now.boundaries, now.gap)
                )

    def dumped(self, record: schema.Dump) -> None:
        """Write where one side of a call was saved, or why it was not."""
        record.path = plain_text(record.path)
        for writer in self.writers:
            writer.dumped(record)

    def end(self) -> None:
        """Write that the process ends by itself; what its last handlers still call is recorded after that."""
        if self._pid != os.getpid():
            return
        try:
            if self.values is not None:
                self.values.close()
            self.tell_targets()
            for code, times in coverage.times.items():
                if times > 1:
                    self.note(code, coverage.not_seen[code], times)
            if self._record is not None:
                self._record.end(schema.End(time.time_ns(), self.numbers.last))
            if self.markers is not None:
                self.markers.keep()
        except Exception as error:
            guard.internal_error("ending the recording", error)

    def close(self) -> None:
        """Give the files back without a word, as a forked child does with those of its parent."""
        self.closed = True
        if self.in_c is not None:
            self.in_c.close()
        closing, self.writers, self._record = self.writers, [], None
        for writer in closing:
            with suppress(OSError):
                writer.close()

    def _describe_inputs(
        self, call: OpenCall, record: schema.Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        walk = describe.Walk(dump=self.dumper is not None)
        record.args, record.kwargs = describe.describe_call(args, kwargs, walk)
        call.watched = in_place.watched(walk.found)
        if not self._reads_all:
            wanted = self.contracts.of(record.op).wanted(walk.found, result=False)
            with self._without_waiting(wanted, record.n, record.op, INPUTS):
                self._write_call(record, args, kwargs, walk.found)
            return
        assert self.values is not None
        if walk.cut:
            self.values.excuse(record.n)
        with self.values.left_to_device(walk.found, record.n, record.op) as is_left:
            if is_left:
                self._write_call(record, args, kwargs, walk.found)
                return
            for writer in self.writers:
                writer.begun(record)
        self.values.read(walk.found, record.n, record.op, INPUTS)
        inputs = schema.Inputs(record.n, record.args, record.kwargs)
        for writer in self.writers:
            writer.inputs(inputs, record.tid)
        if self.dumper is not None and self.dumper.wanted(record.op):
            self._dump_inputs(call, self.dumper, record, walk)

    def _write_call(
        self, record: schema.Call, args: tuple[Any, ...], kwargs: dict[str, Any], found: list[describe.Found]
    ) -> None:
        """Write a call with its arguments, of which no others come later."""
        if self._metadata is not None:
            self._metadata.call(record, args, kwargs, found)
            return
        for writer in self.writers:
            writer.call(record)

    def write_return(self, record: schema.Return, op: str, result: Any, found: list[describe.Found]) -> None:
        """Write that a call came back; ``found`` are the tensors of its result, if that is described."""
        if self._metadata is not None:
            self._metadata.returned(record, op, result, found)
            return
        for writer in self.writers:
            writer.returned(record)

    def read_result(self, found: list[describe.Found], n: int, op: str) -> None:
        """Read the statistics of what a call gave: all from level 5 on, below it what a contract is about."""
        if self._reads_all:
            assert self.values is not None
            self.values.read(found, n, op, OUTPUTS)
            return
        with self._without_waiting(self.contracts.of(op).wanted(found, result=True), n, op, OUTPUTS):
            pass

    def _without_waiting(
        self, found: list[describe.Found], n: int, op: str, side: str
    ) -> contextlib.AbstractContextManager[None]:
        """Read some tensors below level 5; what runs inside writes the call down before the device is told to."""
        if not found or not self._may_read:
            return contextlib.nullcontext()
        if self.values is None:
            chosen = dataclasses.replace(self._chosen, level=Level.STATISTICS, asynchronous=True)
            self.values = Values(chosen, self._folder, None, self.note, self.dumped, self._metadata)
        return self.values.without_waiting(found, n, op, side)

    def _dump_inputs(self, call: OpenCall, dumper: dump.Dumper, record: schema.Call, walk: describe.Walk) -> None:
        """Save the inputs of a call, or have those of a captured one copied at each replay."""
        assert self.values is not None
        try:
            copied = self.values.copy(record, walk)
            if copied is not None:
                call.dump = copied
                return
            if (reason := stats.out_of_reach()) is not None:
                raise dump.Skipped(reason)
            told = called.told(*call.called, walk, modules=dumper.saves_modules)
            opened = dumper.begin(record, walk.found, walk.cut, told)
        except Exception as error:
            self.dumped(schema.Dump(record.n, "inputs", skipped=open_call.why_not_dumped(error)))
            return
        call.dump = opened
        self.dumped(schema.Dump(record.n, "inputs", opened.folder, opened.nbytes))


def _begin(
    op: str,
    target: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    graph: int = 0,
    collective: schema.Collective | None = None,
    called: open_call.Called = open_call.NOT_TOLD,
) -> OpenCall | text_only.TextCall | None:
    """Record that a call begins; see the module's docstring.

    Called by the boundary itself: whoever called that is where the call was made. ``graph`` is the number of the
    CUDA graph that it replays, ``collective`` its place in a process group, ``called`` what a dump says can be
    called again.

    Raises:
        NanFound: the user asked to stop on NaN, and an earlier call gave some.
    """
    recorder = _current or _recorder()
    if recorder is None:
        return None
    thread = recorder.threads.current
    if thread.busy:  # recording itself, or a signal handler or ``__del__`` in the middle of it
        return None
    depth = len(thread.calls)
    thread.busy = True  # with nothing between it and ``try`` where a signal's handler could raise
    try:
        if recorder.values is not None:
            recorder.values.stop_on_nan()
        if recorder.short is not None and collective is None and not recorder.contracts.of(op).every:
            return recorder.short.begin(thread, op, target, args, kwargs, graph)
        return recorder.begin(thread, op, target, args, kwargs, graph, collective, called)
    except BaseException as error:
        del thread.calls[depth:]
        if isinstance(error, NanFound) or not isinstance(error, Exception):  # asked for, or the program's interrupt
            raise
        guard.internal_error("recording a call", error)
        return None
    finally:
        thread.busy = False


begin = _begin
if compiled.crossing is not None:
    begin = compiled.crossing.begin
    compiled.crossing.use_begin(_begin)


def note(code: str, message: str) -> None:
    """Write a note into the recording of this process."""
    recorder = _current or _recorder()
    if recorder is None or (thread := recorder.threads.current).busy:
        return
    thread.busy = True
    try:
        recorder.note(code, message)
    except Exception as error:
        guard.internal_error("writing a note", error)
    finally:
        thread.busy = False


def missed(code: str, sentence: str) -> None:
    """Count that something was not seen, and write it down the first time."""
    if coverage.missed(code, sentence):
        note(code, sentence)


def tell_targets() -> None:
    """Write how the targets stand, if there is a recording yet: opening one writes that itself."""
    if _current is not None:
        _current.tell_targets()


def leave_word() -> None:
    """Record at the end of a process without a single call what would have been recorded, unless in a ring."""
    chosen = settings.current()
    if _current is None and chosen.level and chosen.recording is not None and not chosen.ring_bytes:
        opened = _recorder()
        if opened is not None:
            opened.end()


def _forget_graph(number: int) -> None:
    """A graph is no more, which the garbage collector may find in the middle of anything."""
    if _current is not None and _current.values is not None:
        _current.values.forget(number)


def _graph_hooks() -> graphs.Hooks:
    """What tells the recorder of this process of CUDA graphs."""

    def told(tell: Callable[[Values], Any]) -> Any:
        recorder = _current
        if recorder is None or recorder.values is None or (thread := recorder.threads.current).busy:
            return None
        thread.busy = True
        try:
            with recorder.hidden():
                return tell(recorder.values)
        except Exception as error:
            guard.internal_error("preparing to read a CUDA graph", error)
            return None
        finally:
            thread.busy = False

    return graphs.Hooks(
        begin=begin,
        capture=lambda: bool(told(lambda values: values.prepare_capture())),
        begun=lambda number: told(lambda values: values.captures(number)),
        ended=lambda number, graph: told(lambda values: values.captured(number, graph)),
        gone=_forget_graph,
        left_alone=lambda: told(lambda values: values.leave_alone()),
    )


_current: Recorder | None = None
_opening = threading.Lock()
_opening_in: set[int] = set()
"""Threads that are opening the recorder: a signal handler or ``__del__`` may call a boundary in the middle of it."""


def _recorder() -> Recorder | None:
    """The recorder of this process, opened at its first call; None for a call made by opening it."""
    thread = threading.get_ident()
    if thread in _opening_in:
        return None
    _opening_in.add(thread)
    try:
        with _opening:
            return _current or _open()
    finally:
        _opening_in.discard(thread)


def _open() -> Recorder:
    try:
        opened = Recorder(settings.current())
    except Exception as error:
        guard.internal_error("opening the recording, which stays off", error)
        opened = Recorder(Settings())
    _end_with_process(opened)
    switch(opened)
    return opened


def switch(recorder: Recorder | None) -> None:
    """Have calls recorded by ``recorder`` from now on; None: by one that is opened at the next."""
    global _current
    _current = recorder
    if compiled.crossing is not None:
        in_c = recorder.in_c if recorder is not None else None
        compiled.crossing.activate(in_c.box if in_c is not None else None)


def _end_with_process(recorder: Recorder) -> None:
    atexit.register(recorder.end)
    if multiprocessing.parent_process() is not None:
        # A forked multiprocessing child leaves by os._exit, past atexit, but runs these.
        multiprocessing.util.Finalize(None, recorder.end, exitpriority=0)


def _after_fork_in_child() -> None:
    """Leave the parent's recording alone; the child opens its own at its first call."""
    global _opening
    _opening = threading.Lock()
    _opening_in.clear()
    parents = _current
    switch(None)
    if parents is not None:
        parents.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
