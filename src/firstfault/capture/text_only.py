"""The short way of a call when nothing but a text log is written, up to level 5.

Such a log shows neither numbers nor addresses of a call, so nothing of it need be kept or counted, and what
looks like an earlier call is written as that was, but for the statistics. It is the way that SGLang's own
variables lead to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from firstfault.capture import describe, guard, in_place, stats
from firstfault.capture.repeats import Repeats
from firstfault.capture.template import WHOSE, Template
from firstfault.capture.writers import TextWriter
from firstfault.record import schema, text_log
from firstfault.settings import Level

if TYPE_CHECKING:
    from firstfault.capture.open_call import Thread


class TextOnly(Protocol):
    """The text log of a process of whose calls nothing else is recorded."""

    def begin(
        self, thread: Thread, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], graph: int
    ) -> TextCall:
        """Write that a call begins."""


def of_level(level: Level, text: TextWriter) -> TextOnly | None:
    """The short way at a level, if it has one: a dump needs the number of its call."""
    if level >= Level.DUMPS:
        return None
    if level >= Level.STATISTICS:
        return WithValues(text)
    return WithLayouts(text) if level >= Level.METADATA else NamesOnly(text)


class NamesOnly:
    """Level 1: the names of calls."""

    def __init__(self, text: TextWriter) -> None:
        self._text = text
        self._calls: dict[str, TextCall] = {}

    def begin(
        self, thread: Thread, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], graph: int
    ) -> TextCall:
        """Write that a call begins."""
        self._text.opening(op, thread.tid)
        return self._calls.get(op) or self._calls.setdefault(op, TextCall(self._text, op))


class TextCall:
    """A call of which the name is written; its return is not. All calls of an operator are the same."""

    __slots__ = ("_text", "mutates", "op")

    def __init__(self, text: TextWriter, op: str) -> None:
        self._text = text
        self.op = op
        self.mutates: Collection[int | str] = ()

    def returned(self, result: Any) -> None:
        """A return has no line at level 1."""

    def raised(self, error: BaseException) -> None:
        """Write that the call ended in ``error``."""
        try:
            if not self._text.closed:  # begun in the process that this one was forked from
                tid = threading.get_native_id()
                record = schema.Raise(0, time.time_ns(), describe.class_name(error), guard.message_of(error), tid)
                self._text.raised(record, self.op)
        except Exception as internal:
            guard.internal_error("recording an exception", internal)


class WithLayouts:
    """Level 3: the names of calls, and what their arguments and results look like."""

    def __init__(self, text: TextWriter) -> None:
        self.text = text
        self._inputs: Repeats[bytes] = Repeats()
        self._outputs: Repeats[bytes] = Repeats()

    def begin(
        self, thread: Thread, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], graph: int
    ) -> TextCall:
        """Write that a call begins, and its arguments."""
        found = self._inputs.find(op, args, kwargs)
        if found is not None:
            arguments = found[0].text
        else:
            with guard.unseen():
                described = describe.describe_call(args, kwargs, describe.Walk())
                arguments = _encoded(text_log.inputs(schema.Inputs(0, *described)))
                self._inputs.keep(op, args, kwargs, arguments)
        self.text.opening(op, thread.tid, arguments)
        return DescribedCall(self, thread, op, args, kwargs)

    def returned(self, call: DescribedCall, result: Any) -> None:
        """Write a result."""
        found = self._outputs.find(call.op, (result,), {})
        if found is not None:
            output = found[0].text
        else:
            with guard.unseen():
                output = _encoded(text_log.output(describe.describe(result, describe.Walk())))
                self._outputs.keep(call.op, (result,), {}, output)
        self.text.output(output, call.declared() if call.mutates else [], call.thread.tid)


class WithValues:
    """Level 5: the names of calls first, then the statistics of their arguments, and those of their results."""

    def __init__(self, text: TextWriter) -> None:
        self.text = text
        self._inputs: Repeats[Template] = Repeats()
        self._outputs: Repeats[Template] = Repeats()

    def begin(
        self, thread: Thread, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], graph: int
    ) -> TextCall:
        """Write that a call begins, then its arguments: reading values can take long, or never end."""
        text, tid = self.text, thread.tid
        text.opening(op, tid)
        call = DescribedCall(self, thread, op, args, kwargs)
        found = self._inputs.find(op, args, kwargs)
        with guard.reading():
            if found is not None and not stats.out_of_reach():
                template, tensors = found[0].text, found[1]
                call.watched = template.watched(tensors)
                arguments = template.filled(tensors)
            else:
                walk = describe.Walk()
                inputs = schema.Inputs(0, *describe.describe_call(args, kwargs, walk))
                call.watched = in_place.watched(walk.found)
                arguments = _read(self._inputs, (op, args, kwargs), walk, lambda: text_log.inputs(inputs, WHOSE))
        text.arguments(_encoded(arguments.replace(WHOSE, text.identity_of_arguments(tid))))
        return call

    def returned(self, call: DescribedCall, result: Any) -> None:
        """Write a result, and which arguments changed in place."""
        found = self._outputs.find(call.op, (result,), {})
        with guard.reading():
            changed = in_place.changed(call.watched, call.mutates, *call.given)
            if found is not None and not stats.out_of_reach():
                output = found[0].text.filled(found[1])
            else:
                walk = describe.Walk()
                described = describe.describe(result, walk)
                output = _read(self._outputs, (call.op, (result,), {}), walk, lambda: text_log.output(described))
        self.text.output(_encoded(output), list(map(describe.label, changed)), call.thread.tid)


class DescribedCall(TextCall):
    """A call of which arguments and result are written.

    Attributes:
        thread: the one that it is made in.
        given: its arguments, which the boundary's own frame holds as well.
        watched: the tensors that it may change in place; not at level 3, where nothing watches for that.
    """

    __slots__ = ("_writes", "given", "thread", "watched")

    def __init__(
        self,
        writes: WithLayouts | WithValues,
        thread: Thread,
        op: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._writes = writes
        self._text = writes.text
        self.given = (args, kwargs)
        self.op = op
        self.mutates = ()
        self.thread = thread
        self.watched: list[in_place.Watched] = []

    def declared(self) -> list[str]:
        """The arguments that it is declared to write to."""
        return [
            describe.label((where,)) for where in (*range(len(self.given[0])), *self.given[1]) if where in self.mutates
        ]

    def returned(self, result: Any) -> None:
        """Write the result."""
        if self._text.closed:
            return
        thread = self.thread
        thread.busy = True
        try:
            self._writes.returned(self, result)
        except Exception as internal:
            guard.internal_error("recording a return", internal)
        finally:
            thread.busy = False


def _read(
    repeats: Repeats[Template],
    looks: tuple[str, tuple[Any, ...], dict[str, Any]],
    walk: describe.Walk,
    render: Callable[[], str],
) -> str:
    """What ``render`` prints of the descriptions of a walk once their values are read; kept for the next like it."""
    if all(item.unreachable is None for item in walk.found):
        repeats.keep(*looks, Template(render, walk.found))
    stats.fill_all(walk.found)
    return render()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
