"""A call between its begin and its end, and the threads that calls are made in."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeAlias

from firstfault.capture import describe, dump, guard, in_place, progress
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.capture.graph_copies import CopiedCall
    from firstfault.capture.graph_values import Replay
    from firstfault.capture.recorder import Recorder


Called: TypeAlias = "tuple[Any, Any]"
"""The function behind a boundary, and the object that it is a method of; None where not known, or for none."""
NOT_TOLD: Called = (None, None)


class Thread:
    """What is kept of each thread: the calls it is in, and whether it is in the middle of recording one."""

    __slots__ = ("busy", "calls", "tid")

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.busy = False
        self.tid = threading.get_native_id()


def parent_in(calls: list[Any]) -> int:
    """The number of the call that a thread is in; 0 for none.

    A signal's handler may raise where a call has begun and its boundary does not hold it yet. Nothing else ends such
    a call, so what the thread's list alone holds is let go of.
    """
    while calls and sys.getrefcount(calls[-1]) <= _HELD_BY_LIST:
        calls.pop()
    return calls[-1].n if calls else 0


_HELD_BY_LIST = 2  # by the list, and by ``getrefcount``


class OpenCall:
    """A call that has begun and not ended."""

    __slots__ = (
        "_given",
        "_recorder",
        "_thread",
        "called",
        "dump",
        "markers",
        "mutates",
        "n",
        "op",
        "replay",
        "watched",
    )

    def __init__(
        self, recorder: Recorder, n: int, op: str, thread: Thread, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._recorder = recorder
        self._given = (args, kwargs)  # which the boundary's own frame holds as well
        self._thread = thread
        self.called: Called = NOT_TOLD
        self.n = n
        self.op = op
        self.watched: list[in_place.Watched] = []
        self.dump: dump.OpenDump | CopiedCall | None = None
        self.replay: Replay | None = None
        self.markers: progress.Markers | None = None
        self.mutates: Collection[int | str] = ()

    def returned(self, result: Any) -> None:
        """Write that the call came back, with its result and what it changed in place."""
        recorder, thread = self._recorder, self._thread
        if recorder.closed or not self._leave():
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
        if recorder.closed or not self._leave():
            return
        thread.busy = True
        try:
            message = guard.message_of(error)
            record = schema.Raise(self.n, time.time_ns(), describe.class_name(error), message, thread.tid)
            if self.replay is not None:
                self.replay.done()
            if self.markers is not None:
                self.markers.end(record)
            for writer in recorder.writers:
                writer.raised(record, self.op)
            if self.replay is not None:
                with recorder.hidden():
                    self.replay.take_in()
            if self.dump is not None:
                self._fail_dump(recorder, self.dump, error)
        except Exception as internal:
            guard.internal_error("recording an exception", internal)
        finally:
            thread.busy = False

    def _returned(self, recorder: Recorder, result: Any) -> None:
        record = schema.Return(self.n, time.time_ns(), self._thread.tid)
        if self.replay is not None:
            self.replay.done()
        if self.markers is not None:
            self.markers.end(record)
        found: list[describe.Found] = []
        if recorder.describes:
            with recorder.hidden():
                if self.replay is not None:
                    self.replay.take_in()
                found = self._describe_result(recorder, record, result)
        recorder.write_return(record, self.op, result, found)

    def _describe_result(self, recorder: Recorder, record: schema.Return, result: Any) -> list[describe.Found]:
        walk = describe.Walk(dump=self.dump is not None)
        record.described = True
        record.out = describe.describe(result, walk)
        changed = in_place.changed(self.watched, self.mutates, *self._given)
        recorder.read_result(walk.found, self.n, self.op)
        if self.dump is not None:
            changed += self._dump_outputs(recorder, self.dump, record, walk)
        record.mutated = [describe.label(path) for path in dict.fromkeys(changed)]
        return walk.found

    def _dump_outputs(
        self, recorder: Recorder, opened: dump.OpenDump | CopiedCall, record: schema.Return, walk: describe.Walk
    ) -> list[tuple[describe.PathKey, ...]]:
        before = opened.nbytes
        try:
            changed = opened.finish(record.out, walk.found, walk.cut)
        except Exception as error:
            recorder.dumped(schema.Dump(self.n, "outputs", skipped=why_not_dumped(error)))
            return []
        if opened.folder:
            recorder.dumped(schema.Dump(self.n, "outputs", opened.folder, opened.nbytes - before))
        return changed

    def _fail_dump(self, recorder: Recorder, opened: dump.OpenDump | CopiedCall, error: BaseException) -> None:
        try:
            opened.fail(error)
        except OSError as reason:
            recorder.dumped(schema.Dump(self.n, "outputs", skipped=str(reason)))

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


def why_not_dumped(reason: Exception) -> str:
    """The reason of a dump that was not made; the call itself goes on being recorded."""
    if not isinstance(reason, (dump.Skipped, OSError, RuntimeError)):
        guard.internal_error("saving a dump", reason)
    return guard.message_of(reason)
