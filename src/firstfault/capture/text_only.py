"""The short way of a call when only a text log is written, and no values: levels 1 and 3 without a recording.

Such a log shows neither numbers nor addresses of a call, so nothing of it need be kept or counted, and what
looks like an earlier call is written as that was. It is the way that SGLang's own variables lead to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from firstfault.capture import describe, guard
from firstfault.capture.repeats import Repeats
from firstfault.capture.writers import TextWriter
from firstfault.record import schema, text_log

if TYPE_CHECKING:
    from firstfault.capture.recorder import Thread


class TextOnly:
    """The text log of a process, for calls of which nothing else is recorded."""

    def __init__(self, text: TextWriter, *, described: bool) -> None:
        """``described`` tells whether arguments and results are written, or names alone."""
        self.text = text
        self._described = described
        self._named: dict[str, TextCall] = {}
        self._inputs = Repeats()
        self._outputs = Repeats()

    def begin(self, thread: Thread, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TextCall:
        """Write that a call begins."""
        if not self._described:
            self.text.opening(time.time(), op, thread.tid, b"")
            return self._named.get(op) or self._named.setdefault(op, TextCall(self, op))
        values, names = (args, ()) if not kwargs else ((*args, *kwargs.values()), tuple(kwargs))
        arguments = self._inputs.find(op, values, names)
        if arguments is None:
            with guard.unseen():
                described = describe.describe_call(args, kwargs, describe.Walk())
                arguments = text_log.inputs(schema.Inputs(0, *described)).encode("utf-8", "replace")
                self._inputs.keep(op, values, names, arguments)
        self.text.opening(time.time(), op, thread.tid, arguments)
        return DescribedCall(self, thread, op, (len(args), names))

    def returned(self, call: DescribedCall, result: Any) -> None:
        """Write a result."""
        values, names = (result, ("",)) if type(result) is tuple else ((result,), ())
        output = self._outputs.find(call.op, values, names)
        if output is None:
            with guard.unseen():
                described = describe.describe(result, describe.Walk())
                output = text_log.output(described).encode("utf-8", "replace")
                self._outputs.keep(call.op, values, names, output)
        self.text.output(output, call.mutated(), call.thread.tid)


class TextCall:
    """A call of which the name is written; its return is not. All calls of an operator are the same."""

    __slots__ = ("_text_only", "mutates", "op")

    def __init__(self, text_only: TextOnly, op: str) -> None:
        self._text_only = text_only
        self.op = op
        self.mutates: Collection[int | str] = ()

    def returned(self, result: Any) -> None:
        """A return has no line at level 1."""

    def raised(self, error: BaseException) -> None:
        """Write that the call ended in ``error``."""
        try:
            if not self._text_only.text.closed:  # begun in the process that this one was forked from
                record = schema.Raise(
                    0, time.time_ns(), type(error).__name__, guard.message_of(error), threading.get_native_id()
                )
                self._text_only.text.raised(record, self.op)
        except Exception as internal:
            guard.internal_error("recording an exception", internal)


class DescribedCall(TextCall):
    """A call of which arguments and result are written."""

    __slots__ = ("_given", "thread")

    def __init__(self, text_only: TextOnly, thread: Thread, op: str, given: tuple[int, tuple[str, ...]]) -> None:
        """``given`` is how many arguments it was given by position, and the names of the others."""
        super().__init__(text_only, op)
        self.thread = thread
        self._given = given

    def mutated(self) -> list[str]:
        """The arguments that it is declared to write to; nothing watches for others here."""
        if not self.mutates:
            return []
        count, names = self._given
        return [describe.label((where,)) for where in (*range(count), *names) if where in self.mutates]

    def returned(self, result: Any) -> None:
        """Write the result."""
        if self._text_only.text.closed:
            return
        thread = self.thread
        thread.busy = True
        try:
            self._text_only.returned(self, result)
        except Exception as internal:
            guard.internal_error("recording a return", internal)
        finally:
            thread.busy = False
