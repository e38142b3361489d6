"""What the device read at the replays of CUDA graphs → the captured calls as they ran at each of them.

scale (call 38), captured into graph 1        reading 3: return
replay 17 of graph 1 (call 104), token 412    return: what the statistics page has under token 414
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from firstfault.read.events import Problems, Replayed
from firstfault.read.formats import statistics_page
from firstfault.read.tensors import replaced, tensors
from firstfault.record import codec, schema

MOST_CAPTURED = 100_000
"""Captured calls that are kept, of all graphs."""
MOST_IN_FLIGHT = 1024
UNREAD = "[not read: the device did not get there]"
FREED = "[not read: the program had freed it]"
LEFT_OUT = "replays of CUDA graphs at which next to nothing was read are left out"


class Replays:
    """Gives the calls of a replay behind its end, each with what was read at it.

    A call that is given is paid for by what was read of it: of many captured calls and many replays the product
    would have to be given otherwise, from a record in which nothing was read.
    """

    def __init__(self, readings: statistics_page.Readings, problems: Problems) -> None:
        self._readings = readings
        self._problems = problems
        self._open: dict[int, schema.Call] = {}
        self._graphs: dict[int, list[tuple[schema.Call, schema.Return]]] = {}
        self._captured = 0
        self._replays: dict[int, schema.Call] = {}
        self._dumps: dict[int, str] = {}
        self._credit = MOST_CAPTURED

    def joined(self, records: Iterable[codec.Record]) -> Iterator[codec.Record | Replayed]:
        """The records, and the calls of each replay that were read at it."""
        for record in records:
            yield record
            if isinstance(record, schema.Call):
                self._begun(record)
            elif isinstance(record, schema.Dump) and record.replay and len(self._dumps) < MOST_CAPTURED:
                self._dumps[record.n] = record.path
            elif isinstance(record, (schema.Return, schema.Raise)):
                if isinstance(record, schema.Return):
                    self._keep(record)
                if record.n in self._replays:
                    yield from self._ended(record.n)

    def rest(self) -> Iterator[Replayed]:
        """The calls of the replays that had no end."""
        for n in list(self._replays):
            yield from self._ended(n)

    def _begun(self, call: schema.Call) -> None:
        kept = self._replays if call.token else self._open if call.graph and call.device < 0 else None
        if kept is not None:
            kept[call.n] = msgspec.structs.replace(call)  # a history takes the arguments of those that ended away
            if len(kept) > MOST_IN_FLIGHT:
                del kept[next(iter(kept))]

    def _keep(self, result: schema.Return) -> None:
        """Take in a captured call that anything is read of."""
        call = self._open.pop(result.n, None)
        if call is None or self._captured >= MOST_CAPTURED:
            return
        values = [*(call.args or ()), *(call.kwargs or {}).values(), result.out]
        if any(tensor.reading for value in values for _, tensor in tensors("", value)):
            self._captured += 1
            self._graphs.setdefault(call.graph, []).append((call, result))

    def _ended(self, n: int) -> Iterator[Replayed]:
        replay = self._replays.pop(n)
        dumps, self._dumps = self._dumps, {}
        if self._credit < 0:
            self._problems.add(LEFT_OUT)
            return
        for call, result in sorted(self._graphs.get(replay.graph, ()), key=lambda pair: pair[0].n):
            self._credit -= 1
            yield self._at(replay, call, result, dumps.get(call.n, ""))

    def _at(self, replay: schema.Call, call: schema.Call, result: schema.Return, dump: str) -> Replayed:
        def read(tensor: schema.Tensor) -> schema.Tensor:
            if not tensor.reading:
                return tensor
            entry = self._readings.entry(replay.token + tensor.reading - 1)
            if entry is None or entry.statistics is None:
                return msgspec.structs.replace(tensor, statistics=UNREAD if entry is None else FREED)
            self._credit += 1
            low, high, mean, nan_count, inf_count = entry.statistics
            return msgspec.structs.replace(
                tensor, statistics=None, min=low, max=high, mean=mean, nan_count=nan_count, inf_count=inf_count
            )

        args = None if call.args is None else [replaced(value, read) for value in call.args]
        kwargs = None if call.kwargs is None else {name: replaced(value, read) for name, value in call.kwargs.items()}
        given = msgspec.structs.replace(
            call, t=replay.t, tid=replay.tid, parent=replay.n, args=args, kwargs=kwargs, replay=replay.replay
        )
        gave = msgspec.structs.replace(result, t=replay.t, tid=replay.tid, out=replaced(result.out, read))
        return Replayed(given, gave, dump)
