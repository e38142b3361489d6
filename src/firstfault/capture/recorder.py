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
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

from firstfault import settings
from firstfault.capture import (
    deferred_stats,
    describe,
    device_stats,
    dump,
    guard,
    progress,
    stats,
    text_only,
    tripwire,
    writers,
)
from firstfault.record import schema
from firstfault.record.statistics_page import INPUTS, OUTPUTS
from firstfault.settings import Level, Settings

_FRAMES_TO_CALLER = 3  # this method, the function that calls it, the boundary
_TORCH_CALLERS = ("torch/nn/modules/module.py", "torch/_ops.py", "firstfault/capture/targets/nn_module.py")


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
        if (opened := writers.open_record(chosen)) is not None:
            self._record, folder = opened
            self.writers.append(self._record)
        self.dumper: dump.Dumper | None = None
        if chosen.level >= Level.DUMPS:
            self.dumper = dump.Dumper(writers.dump_folder(chosen, folder), chosen, self._pid)
        self._folder = folder
        self._markers: progress.Markers | None = None
        self._wants_markers = folder is not None
        self._deferred: deferred_stats.DeferredStatistics | None = None
        self._defers = chosen.defers_statistics and folder is not None
        if chosen.asynchronous and self.reads_values and not self._defers:
            guard.tell("FIRSTFAULT_STATS=async needs a recording at level 5; statistics are read at once")
        self.tripwire = tripwire.Tripwire() if chosen.stop_on_nan and self.reads_values else None
        self.text_only: text_only.TextOnly | None = None
        if self.text is not None and self._record is None and self.tripwire is None:
            self.text_only = text_only.of_level(chosen.level, self.text)

    def begin(self, thread: Thread, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenCall:
        """Write that a call begins, and save its inputs at level 10."""
        n = self._begun = next(self._count)
        calls = thread.calls
        record = schema.Call(n, time.time_ns(), op, target, calls[-1].n if calls else 0, thread.tid)
        if self._record is not None:
            record.site = _site(sys._getframe(_FRAMES_TO_CALLER))
        call = OpenCall(self, n, op, thread)
        markers = self._markers or self._open_markers()
        if markers is not None:
            record.device, record.stream = place = markers.place()
        if not self.describes:
            for writer in self.writers:
                writer.call(record)
        else:
            with guard.unseen():
                self._describe_inputs(call, record, args, kwargs)
        if markers is not None:
            call.markers = markers
            markers.begin(n, place)
        calls.append(call)
        return call

    def _open_markers(self) -> progress.Markers | None:
        """The marker page, once the program uses CUDA; one note where it cannot be had."""
        if not self._wants_markers or not torch.cuda.is_initialized():
            return None
        self._wants_markers = False
        try:
            assert self._folder is not None
            self._markers = progress.open_markers(self._folder)
        except (progress.MarkersUnavailable, OSError) as reason:
            self.note("markers", f"no progress markers: {reason}")
        return self._markers

    def read_values(self, found: list[describe.Found], n: int, op: str, side: str) -> None:
        """Read the statistics of one side of a call, or have the device read them later."""
        deferred = self._deferred or self._open_deferred()
        if deferred is None:
            stats.fill_all(found)
        else:
            deferred.start(deferred.ask(found, deferred_stats.Side(n, op, side)))
        if self.tripwire is not None:
            for item in found:
                self.tripwire.see(n, op, side, item.path, item.described.nan_count)

    def stop_on_nan(self) -> None:
        """Raise what the tripwire has found.

        Raises:
            NanFound: a call gave NaN for inputs without.
        """
        assert self.tripwire is not None
        try:
            if self._deferred is not None:
                self._deferred.look()
        except Exception as error:
            guard.internal_error("looking for NaN", error)
        if (found := self.tripwire.found()) is not None:
            raise found

    def _open_deferred(self) -> deferred_stats.DeferredStatistics | None:
        """The statistics page, once the program uses CUDA; one note where it cannot be had."""
        if not self._defers or not torch.cuda.is_initialized() or guard.graph_capture_active():
            return None
        self._defers = False
        reader = device_stats.reader()
        try:
            if reader is None:
                raise device_stats.Unavailable("the device cannot read them by itself")
            assert self._folder is not None
            self._deferred = deferred_stats.DeferredStatistics(self._folder, reader, self.tripwire)
        except (device_stats.Unavailable, progress.MarkersUnavailable, OSError) as reason:
            self.note("statistics", f"statistics are read at once: {reason}")
        return self._deferred

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
        """Write that the process ends by itself."""
        if self._deferred is not None and self._pid == os.getpid():
            self._deferred.close()
            self._deferred = None
        found = self.tripwire.found() if self.tripwire is not None and self._pid == os.getpid() else None
        if found is not None:
            guard.tell(f"{found}, after the last boundary")
        if self._record is not None and self._pid == os.getpid():
            self._record.end(schema.End(time.time_ns(), self._begun))
            self.writers.remove(self._record)
            self._record = None
        if self._markers is not None and self._pid == os.getpid():
            self._markers.close()
            self._markers = None

    def close(self) -> None:
        """Give the files back without a word, as a forked child does with those of its parent."""
        for writer in self.writers:
            writer.close()
        self.writers = []
        self._record = None

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
        deferred = self._deferred or self._open_deferred()
        if deferred is not None and all(item.tensor.is_cuda for item in walk.found):
            launches = deferred.ask(walk.found, deferred_stats.Side(record.n, record.op, INPUTS))
            try:
                for writer in self.writers:
                    writer.call(record)
            finally:
                deferred.start(launches)
            return
        for writer in self.writers:
            writer.begun(record)
        self.read_values(walk.found, record.n, record.op, INPUTS)
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
        except (dump.Skipped, OSError, RuntimeError) as reason_not:
            self.dumped(record.n, "inputs", skipped=str(reason_not))
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
            with guard.unseen():
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
            record = schema.Raise(self.n, time.time_ns(), type(error).__name__, message, thread.tid)
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
            record.device, record.stream = place = self.markers.place()
            self.markers.end(self.n, place)
        if recorder.describes:
            walk = describe.Walk(dump=self.dump is not None)
            record.described = True
            record.out = describe.describe(result, walk)
            changed = describe.changed(self.watched, self.mutates)
            if recorder.reads_values:
                recorder.read_values(walk.found, self.n, self.op, OUTPUTS)
            if self.dump is not None:
                changed += self._dump_outputs(recorder, self.dump, record, walk)
            record.mutated = [describe.label(path) for path in dict.fromkeys(changed)]
        for writer in recorder.writers:
            writer.returned(record)

    def _dump_outputs(
        self, recorder: Recorder, opened: dump.OpenDump, record: schema.Return, walk: describe.Walk
    ) -> list[tuple[describe.PathKey, ...]]:
        before = opened.nbytes
        try:
            changed = opened.finish(record.out, walk.found, walk.cut)
        except (dump.Skipped, OSError, RuntimeError) as reason:
            recorder.dumped(self.n, "outputs", skipped=str(reason))
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

    Raises:
        NanFound: the user asked to stop on NaN, and an earlier call gave some.
    """
    recorder = _current or _recorder()
    thread = recorder.threads.current
    if thread.busy:
        return None
    if recorder.tripwire is not None:
        recorder.stop_on_nan()
    thread.busy = True
    try:
        if recorder.text_only is not None:
            return recorder.text_only.begin(thread, op, args, kwargs)
        return recorder.begin(thread, op, target, args, kwargs)
    except Exception as error:
        guard.internal_error("recording a call", error)
        return None
    finally:
        thread.busy = False


def note(code: str, message: str) -> None:
    """Write a note into the recording of this process."""
    _recorder().note(code, message)


_current: Recorder | None = None
_opening = threading.Lock()


def _recorder() -> Recorder:
    """The recorder of this process, opened at its first call."""
    global _current
    if _current is None:
        with _opening:
            if _current is None:
                try:
                    _current = Recorder(settings.current())
                except Exception as error:
                    guard.internal_error("opening the recording, which stays off", error)
                    _current = Recorder(Settings())
                _end_with_process(_current)
    return _current


def _end_with_process(recorder: Recorder) -> None:
    atexit.register(recorder.end)
    if multiprocessing.parent_process() is not None:
        # A forked multiprocessing child leaves by os._exit, past atexit, but runs these.
        multiprocessing.util.Finalize(None, recorder.end, exitpriority=0)


def _after_fork_in_child() -> None:
    """Leave the parent's recording alone; the child opens its own at its first call."""
    global _current, _opening
    _opening = threading.Lock()
    if _current is not None:
        _current.close()
        _current = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def _site(frame: FrameType | None) -> str:
    """Where the call was made, as ``file:line``; torch's own frames between module and forward are passed over."""
    while frame is not None and frame.f_code.co_filename.endswith(_TORCH_CALLERS):
        frame = frame.f_back
    return _file_line(frame.f_code, frame.f_lineno) if frame is not None else ""


@lru_cache(maxsize=4096)
def _file_line(code: CodeType, line: int) -> str:
    return describe.plain_text(f"{code.co_filename}:{line}")
