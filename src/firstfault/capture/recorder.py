"""The process's recorder: a call begins, returns or raises → records to every writer, in that order.

    call = begin("RMSNorm.forward", "boundary", args, kwargs)
    …
    call.returned(result)        or        call.raised(error)

``begin`` answers None where a call is not recorded: when it is made by recording itself. None of them
raises what went wrong in recording.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch

from firstfault import settings
from firstfault.capture import describe, dump, guard, progress, stats, text_only, writers
from firstfault.capture.black_box import BlackBox
from firstfault.capture.sites import site_of
from firstfault.record import schema
from firstfault.record.sinks.ring import Ring
from firstfault.settings import Level, Settings

_FRAMES_TO_BOUNDARY = 2  # this method, and the function that calls it


class Thread:
    """What is kept of each thread: the calls it is in, and whether it is in the middle of recording one."""

    __slots__ = ("busy", "calls", "tid")

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []
        self.busy = False
        self.tid = threading.get_native_id()


class _Threads(threading.local):
    """The current thread's state, behind one look-up: a thread-local costs ten times an attribute."""

    def __init__(self) -> None:
        self.current = Thread()


class Recorder:
    """The recording of one process: its numbering, its writers, its dumps."""

    def __init__(self, chosen: Settings) -> None:
        # Plain flags: a comparison of enum members costs a microsecond where the code is cold.
        self.describes = chosen.level >= Level.METADATA
        self.reads_values = chosen.level >= Level.STATISTICS
        self.hidden = guard.reading if self.reads_values else guard.unseen
        self.threads = _Threads()
        self._pid = os.getpid()
        self._count = itertools.count(1)
        self._begun = 0
        self.writers: list[writers.Writer] = []
        self._record: writers.RecordWriter | None = None
        folder = None
        self.text = writers.open_text(chosen)
        if self.text is not None:
            self.writers.append(self.text)
        self.black_box: BlackBox | None = None
        if (opened := writers.open_record(chosen)) is not None:
            self._record, folder = opened
            self.writers.append(self._record)
            if isinstance(self._record.sink, Ring) and self.text is None and chosen.level == Level.METADATA:
                self.black_box = BlackBox(self._record, self._record.sink)
        self.dumper: dump.Dumper | None = None
        if chosen.level >= Level.DUMPS:
            self.dumper = dump.Dumper(writers.dump_folder(chosen, folder), chosen, self._pid)
        self._folder = folder
        self._markers: progress.Markers | None = None
        self._wants_markers = folder is not None
        self.text_only: text_only.TextOnly | None = None
        if self.text is not None and self._record is None:
            self.text_only = text_only.of_level(chosen.level, self.text)

    def begin(self, thread: Thread, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenCall:
        """Write that a call begins, and save its inputs at level 10."""
        n = self._begun = next(self._count)
        calls = thread.calls
        record = schema.Call(n, time.time_ns(), op, target, calls[-1].n if calls else 0, thread.tid)
        if self._record is not None:
            record.site = site_of(sys._getframe(_FRAMES_TO_BOUNDARY).f_back)
        call = OpenCall(self, n, op, thread)
        markers = self._markers or self._open_markers()
        if markers is not None:
            call.markers = markers
            record.device, record.stream = markers.place()
        calls.append(call)
        if self.black_box is not None:
            call.watched = self.black_box.call(record, args, kwargs)
        elif not self.describes:
            for writer in self.writers:
                writer.call(record)
        else:
            with self.hidden():
                self._describe_inputs(call, record, args, kwargs)
        if markers is not None:
            markers.begin(n, record.device, record.stream)
        return call

    def _open_markers(self) -> progress.Markers | None:
        """The marker page, once the program uses CUDA; one note where it cannot be had."""
        if not self._wants_markers or not torch.cuda.is_initialized():
            return None
        try:
            assert self._folder is not None
            self._markers = progress.open_markers(self._folder)
            self._wants_markers = self._markers is None  # not just now: tried again at the next call
        except (progress.MarkersUnavailable, OSError) as reason:
            self._wants_markers = False
            self.note("markers", f"no progress markers: {reason}")
        return self._markers

    def note(self, code: str, message: str, n: int = 0) -> None:
        """Write a note into the recording."""
        record = schema.Note(time.time_ns(), code, message, n)
        for writer in self.writers:
            writer.note(record)

    def dumped(self, n: int, side: str, path: str = "", nbytes: int = 0, skipped: str | None = None) -> None:
        """Write where one side of a call was saved, or why it was not."""
        record = schema.Dump(n, side, describe.plain_text(path), nbytes, skipped)
        for writer in self.writers:
            writer.dumped(record)

    def end(self) -> None:
        """Write that the process ends by itself; what its last handlers still call is recorded after that."""
        if self._pid != os.getpid():
            return
        try:
            if self._record is not None:
                self._record.end(schema.End(time.time_ns(), self._begun))
            if self._markers is not None:
                self._markers.keep()
        except Exception as error:
            guard.internal_error("ending the recording", error)

    def close(self) -> None:
        """Give the files back without a word, as a forked child does with those of its parent."""
        closing, self.writers, self._record = self.writers, [], None
        for writer in closing:
            with suppress(OSError):
                writer.close()

    def _describe_inputs(
        self, call: OpenCall, record: schema.Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        walk = describe.Walk(dump=self.dumper is not None)
        record.args, record.kwargs = describe.describe_call(args, kwargs, walk)
        call.watched = describe.watched(walk.found)
        if not self.reads_values:
            for writer in self.writers:
                writer.call(record)
            return
        for writer in self.writers:
            writer.begun(record)
        stats.fill_all(walk.found)
        inputs = schema.Inputs(record.n, record.args, record.kwargs)
        for writer in self.writers:
            writer.inputs(inputs, record.tid)
        if self.dumper is not None and self.dumper.wanted(record.op):
            call.dump = self._dump_inputs(self.dumper, record, walk)

    def _dump_inputs(self, dumper: dump.Dumper, record: schema.Call, walk: describe.Walk) -> dump.OpenDump | None:
        if (reason := stats.out_of_reach()) is not None:
            self.dumped(record.n, "inputs", skipped=reason)
            return None
        try:
            opened = dumper.begin(record, walk.found, walk.cut)
        except Exception as error:
            self.dumped(record.n, "inputs", skipped=_why_not_dumped(error))
            return None
        self.dumped(record.n, "inputs", str(opened.folder), opened.nbytes)
        return opened


class OpenCall:
    """A call that has begun and not ended."""

    __slots__ = ("_recorder", "_thread", "dump", "markers", "mutates", "n", "op", "watched")

    def __init__(self, recorder: Recorder, n: int, op: str, thread: Thread) -> None:
        self._recorder = recorder
        self._thread = thread
        self.n = n
        self.op = op
        self.watched: list[describe.Watched] = []
        self.dump: dump.OpenDump | None = None
        self.markers: progress.Markers | None = None
        self.mutates: Collection[int | str] = ()

    def returned(self, result: Any) -> None:
        """Write that the call came back, with its result and what it changed in place."""
        recorder, thread = self._recorder, self._thread
        if recorder is not _current or not self._leave():
            return
        thread.busy = True
        try:
            self._returned(recorder, result)
        except Exception as error:
            guard.internal_error("recording a return", error)
        finally:
            thread.busy = False

    def raised(self, error: BaseException) -> None:
        """Write that the call ended in ``error``."""
        recorder, thread = self._recorder, self._thread
        if recorder is not _current or not self._leave():
            return
        thread.busy = True
        try:
            message = guard.message_of(error)
            record = schema.Raise(self.n, time.time_ns(), describe.class_name(error), message, thread.tid)
            if self.markers is not None:
                record.device, record.stream = self.markers.place()
                self.markers.end(self.n, record.device, record.stream)
            for writer in recorder.writers:
                writer.raised(record, self.op)
            if self.dump is not None:
                self._fail_dump(recorder, self.dump, error)
        except Exception as internal:
            guard.internal_error("recording an exception", internal)
        finally:
            thread.busy = False

    def _returned(self, recorder: Recorder, result: Any) -> None:
        record = schema.Return(self.n, time.time_ns(), self._thread.tid)
        if self.markers is not None:
            record.device, record.stream = self.markers.place()
            self.markers.end(self.n, record.device, record.stream)
        if recorder.black_box is not None:
            record.mutated = [describe.label(path) for path in describe.changed(self.watched, self.mutates)]
            recorder.black_box.returned(record, self.op, result)
            return
        if recorder.describes:
            with recorder.hidden():
                self._describe_result(recorder, record, result)
        for writer in recorder.writers:
            writer.returned(record)

    def _describe_result(self, recorder: Recorder, record: schema.Return, result: Any) -> None:
        walk = describe.Walk(dump=self.dump is not None)
        record.described = True
        record.out = describe.describe(result, walk)
        changed = describe.changed(self.watched, self.mutates)
        if recorder.reads_values:
            stats.fill_all(walk.found)
        if self.dump is not None:
            changed += self._dump_outputs(recorder, self.dump, record, walk)
        record.mutated = [describe.label(path) for path in dict.fromkeys(changed)]

    def _dump_outputs(
        self, recorder: Recorder, opened: dump.OpenDump, record: schema.Return, walk: describe.Walk
    ) -> list[tuple[describe.PathKey, ...]]:
        before = opened.nbytes
        try:
            changed = opened.finish(record.out, walk.found, walk.cut)
        except Exception as error:
            recorder.dumped(self.n, "outputs", skipped=_why_not_dumped(error))
            return []
        recorder.dumped(self.n, "outputs", str(opened.folder), opened.nbytes - before)
        return changed

    def _fail_dump(self, recorder: Recorder, opened: dump.OpenDump, error: BaseException) -> None:
        try:
            opened.fail(error)
        except OSError as reason:
            recorder.dumped(self.n, "outputs", skipped=str(reason))

    def _leave(self) -> bool:
        """Take the call off its thread's stack, with any that were never closed (a killed generator)."""
        calls = self._thread.calls
        if calls and calls[-1] is self:
            calls.pop()
            return True
        if self not in calls:
            return False
        del calls[calls.index(self) :]
        return True


def begin(op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenCall | text_only.TextCall | None:
    """Record that a call begins; see the module's docstring.

    Called by the boundary itself: whoever called that is where the call was made.
    """
    recorder = _current or _recorder()
    if recorder is None:
        return None
    thread = recorder.threads.current
    if thread.busy:  # recording itself, or a signal handler or ``__del__`` in the middle of it
        return None
    thread.busy = True
    depth = len(thread.calls)
    try:
        if recorder.text_only is not None:
            return recorder.text_only.begin(thread, op, args, kwargs)
        return recorder.begin(thread, op, target, args, kwargs)
    except BaseException as error:
        del thread.calls[depth:]
        if not isinstance(error, Exception):  # an interrupt, which is the program's
            raise
        guard.internal_error("recording a call", error)
        return None
    finally:
        thread.busy = False


def note(code: str, message: str) -> None:
    """Write a note into the recording of this process."""
    try:
        if (recorder := _current or _recorder()) is not None:
            recorder.note(code, message)
    except Exception as error:
        guard.internal_error("writing a note", error)


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
    global _current
    try:
        opened = Recorder(settings.current())
    except Exception as error:
        guard.internal_error("opening the recording, which stays off", error)
        opened = Recorder(Settings())
    _end_with_process(opened)
    _current = opened
    return opened


def _end_with_process(recorder: Recorder) -> None:
    atexit.register(recorder.end)
    if multiprocessing.parent_process() is not None:
        # A forked multiprocessing child leaves by os._exit, past atexit, but runs these.
        multiprocessing.util.Finalize(None, recorder.end, exitpriority=0)


def _after_fork_in_child() -> None:
    """Leave the parent's recording alone; the child opens its own at its first call."""
    global _current, _opening
    _opening = threading.Lock()
    _opening_in.clear()
    parents, _current = _current, None
    if parents is not None:
        parents.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _why_not_dumped(reason: Exception) -> str:
    """The reason of a dump that was not made; the call itself goes on being recorded."""
    if not isinstance(reason, (dump.Skipped, OSError, RuntimeError)):
        guard.internal_error("saving a dump", reason)
    return guard.message_of(reason)
