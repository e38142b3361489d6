"""What a recording tells of one call in several places → one record of it.

Short calls of a ring get back what they left out, arguments the statistics that came after their call, and
tensors those that the device wrote down by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from firstfault.read.events import Problems, Replayed
from firstfault.read.formats.layouts import Layouts
from firstfault.read.formats.replays import Replays
from firstfault.read.formats.statistics_page import Readings
from firstfault.read.tensors import tensors
from firstfault.record import codec, schema

STATISTICS_LEVEL = 5


class Joins:
    """All of them, for one process; ``folder`` is its folder in the recording."""

    def __init__(self, folder: Path, problems: Problems) -> None:
        self._layouts = Layouts(problems)
        self._statistics = Statistics()
        readings = Readings(folder)
        self._deferred = Deferred(readings)
        self._replays = Replays(readings, problems)

    def joined(self, records: Iterable[codec.Record]) -> Iterator[codec.Record | Replayed]:
        """The records, whole, and the calls in CUDA graphs as they ran at each replay."""
        return self._replays.joined(self._deferred.joined(self._statistics.joined(self._layouts.filled(records))))

    def rest(self) -> Iterator[codec.Record | Replayed]:
        """The calls that still waited for something, once there are no more records."""
        yield from self._replays.joined(self._deferred.joined(self._statistics.rest()))
        yield from self._replays.rest()


class Statistics:
    """Joins calls with the statistics of their arguments, which from level 5 on come as a record of their own.

    A call whose statistics never came, because reading them was what did not end, is given as it was.
    """

    def __init__(self) -> None:
        self._held: dict[int, schema.Call] = {}
        self._level = 0
        self._deferred = False

    def joined(self, records: Iterable[codec.Record]) -> Iterator[codec.Record]:
        """The records, each call only once its statistics have come or it has ended."""
        held = self._held
        for record in records:
            if isinstance(record, schema.Header):
                self._level, self._deferred = record.level, record.deferred
            if isinstance(record, schema.Call) and self._level >= STATISTICS_LEVEL and self._awaits_inputs(record):
                held[record.n] = record
                continue
            if isinstance(record, schema.Inputs):
                if (call := held.pop(record.n, None)) is not None:
                    call.args, call.kwargs = record.args, record.kwargs
                    yield call
                continue
            if isinstance(record, (schema.Return, schema.Raise, schema.Dump)) and record.n in held:
                yield held.pop(record.n)
            yield record

    def _awaits_inputs(self, record: schema.Call) -> bool:
        """Whether the arguments come once more: not where the device alone reads them, and later."""
        return not self._deferred or any(
            tensor.min is None and tensor.statistics is None
            for value in values_of(record)
            for _, tensor in tensors("", value)
        )

    def rest(self) -> list[codec.Record]:
        """The calls that are still without, once there are no more records."""
        calls: list[codec.Record] = [*self._held.values()]
        self._held.clear()
        return calls


class Deferred:
    """Joins tensors with the statistics that the device wrote down by itself, whose place they have in a record.

    A tensor that the device did not get to is given as it was, so with the reason in the place of them.
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._deferred = False

    def joined(self, records: Iterable[codec.Record]) -> Iterator[codec.Record]:
        """The records, with the statistics that there are by now."""
        self._readings.refresh()
        for record in records:
            if isinstance(record, schema.Header):
                self._deferred = record.deferred or self._readings.exist()  # below level 5, of what a contract is about
            if self._deferred:
                for value in values_of(record):
                    for _, tensor in tensors("", value):
                        self._fill(tensor)
            yield record

    def _fill(self, tensor: schema.Tensor) -> None:
        found = self._readings.find(tensor.token) if tensor.token else None
        if found is not None:
            tensor.statistics, tensor.token = None, 0
            tensor.min, tensor.max, tensor.mean, tensor.nan_count, tensor.inf_count = found


def values_of(record: codec.Record) -> list[schema.Value]:
    """The values that a record carries."""
    if isinstance(record, (schema.Call, schema.Inputs)):
        return [*(record.args or ()), *(record.kwargs or {}).values()]
    return [record.out] if isinstance(record, schema.Return) else []
