"""Calls → the tables of an index, and the views of them that are asked.

calls    one row a call
tensors  one row a tensor: its values as numbers; its layout and its label by the number of a row that many share

Rows are kept as columns of numbers until there are enough of them, for DuckDB takes such in at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from firstfault.read import earlier
from firstfault.read.calls import Call
from firstfault.read.events import Replayed
from firstfault.read.producers import Link
from firstfault.read.tensors import Labelled, flattened
from firstfault.record import schema

if TYPE_CHECKING:
    import duckdb

ROWS_AT_ONCE = 100_000
"""Rows of a table that wait for being taken in."""
MOST_SHARED = 200_000
"""Layouts and labels that are known again; beyond that they are written once more."""
_ADDRESSES = 2**64
_EXACT = 2**53
"""Whole numbers up to here are what they were once they have been floating-point numbers."""

TENSOR = {
    "shape": "BIGINT[]",
    "dtype": "VARCHAR",
    "device": "VARCHAR",
    "stride": "BIGINT[]",
    "offset": "BIGINT",
    "ptr": "UBIGINT",
    "storage": "UBIGINT",
    "nbytes": "BIGINT",
    "contiguous": "BOOLEAN",
    "requires_grad": "BOOLEAN",
    "version": "BIGINT",
    "statistics": "VARCHAR",
    "kind": "VARCHAR",
    "missing": "VARCHAR",
}
"""What is kept of a tensor besides its values, as SQL has it."""
_TENSOR = "STRUCT(" + ", ".join(f'"{name}" {kind}' for name, kind in TENSOR.items()) + ")"

VIEWS = (
    """
    CREATE VIEW described AS SELECT process, n, replay, place, side, label, tensor, low, high, mean, nan_count,
        inf_count, form, exact FROM tensor_rows JOIN labels ON labels.id = tensor_rows.label_id
        JOIN layouts ON layouts.id = tensor_rows.layout_id LEFT JOIN exacts ON exacts.id = tensor_rows.exact_id
    """,
    """
    CREATE VIEW tensors AS SELECT process, n, replay, side, label, tensor.shape AS shape, tensor.dtype AS dtype,
        tensor.device AS device, tensor.stride AS stride, coalesce(tensor.offset, 0) AS storage_offset,
        coalesce(tensor.ptr, 0) AS ptr, coalesce(tensor.storage, 0) AS storage, coalesce(tensor.nbytes, 0) AS nbytes,
        coalesce(tensor.contiguous, true) AS contiguous, coalesce(tensor.requires_grad, false) AS requires_grad,
        tensor.version AS version, tensor.kind AS kind, tensor.missing AS missing FROM described
    """,
    """
    CREATE VIEW statistics AS SELECT process, n, replay, side, label,
        CASE WHEN form & 3 > 0 THEN coalesce(low, 'nan') END AS min,
        CASE WHEN form & 12 > 0 THEN coalesce(high, 'nan') END AS max,
        CASE WHEN form & 48 > 0 THEN coalesce(mean, 'nan') END AS mean,
        CASE WHEN form & 64 > 0 THEN nan_count END AS nan_count,
        CASE WHEN form & 128 > 0 THEN inf_count END AS inf_count, tensor.statistics AS why_none
        FROM described WHERE form & 3 > 0 OR tensor.statistics IS NOT NULL
    """,
    """
    CREATE VIEW writers AS SELECT process, n, label, position, writer, writer_op, how, since
        FROM writer_rows JOIN ways ON ways.id = writer_rows.way_id
    """,
)
NONE, WHOLE, FLOATING, NAMED = range(4)
"""What a statistic was in the record: not there, a whole number, another, or the name of what is none."""


class Columns:
    """A table of an index whose rows wait to be taken in as columns, of ``q`` and ``d`` as numpy has them, or texts."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str, columns: dict[str, str]) -> None:
        self._connection = connection
        self._name = name
        self._kinds = columns
        self._rows: list[tuple[Any, ...]] = []
        sql = {"q": "BIGINT", "d": "DOUBLE", "O": "VARCHAR"}
        typed = (f"{each} {sql[kind]}" for each, kind in columns.items())
        connection.execute(f"CREATE TABLE {name} ({', '.join(typed)})")

    def add(self, row: tuple[Any, ...]) -> None:
        """Put a row to those that wait."""
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Take in the rows that wait.

        Raises:
            OverflowError: a number has more than 64 bits.
        """
        import numpy

        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        waiting = {
            name: numpy.array(column, dtype=object if kind == "O" else kind)
            for (name, kind), column in zip(self._kinds.items(), columns, strict=True)
        }
        self._rows.clear()
        self._connection.register("waiting", waiting)
        self._connection.execute(f"INSERT INTO {self._name} SELECT * FROM waiting")  # noqa: S608
        self._connection.unregister("waiting")


class Shared:
    """A table of rows that others refer to by their numbers: each is written once, as JSON, which has no bounds."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str, columns: dict[str, str], scratch: str) -> None:
        self._connection = connection
        self.ids: dict[Any, int] = {}
        self._count = 0
        self._path = f"{scratch}/{name}.jsonl"
        self._file = open(self._path, "wb")  # noqa: SIM115
        self._columns = {"id": "BIGINT"} | columns
        self._encode = msgspec.json.Encoder().encode
        connection.execute(f"CREATE TABLE {name} ({', '.join(' '.join(each) for each in self._columns.items())})")
        self._insert = f"INSERT INTO {name} SELECT * FROM read_json(?, format='newline_delimited', columns=?)"  # noqa: S608

    def make(self, key: Any, row: dict[str, Any]) -> int:
        """The number of the row of a key that has none yet, which is written."""
        self._count += 1
        if len(self.ids) >= MOST_SHARED:
            self.ids.clear()
        self.ids[key] = self._count
        self._file.write(self._encode({"id": self._count} | row) + b"\n")
        return self._count

    def close(self) -> None:
        """Take in all of them."""
        self._file.close()
        if self._count:
            self._connection.execute(self._insert, [self._path, self._columns])


class Tables:
    """All tables of an index that is being made; files that it needs for that lie in ``scratch``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, scratch: str) -> None:
        numbers = dict.fromkeys(("n", "line", "t", "duration", "parent", "tid", "device", "stream", "graph"), "q")
        texts = dict.fromkeys(
            ("process", "op", "target", "site", "state", "exception", "message", "dump", "mutated"), "O"
        )
        self._connection = connection
        self._calls = Columns(connection, "call_rows", numbers | texts | {"described": "q"})
        self._tensors = Columns(connection, "tensor_rows", {
            "n": "q", "replay": "q", "place": "q", "label_id": "q", "layout_id": "q", "exact_id": "q", "form": "q",
            "low": "d", "high": "d", "mean": "d", "nan_count": "q", "inf_count": "q",
        })  # fmt: skip
        self._writers = Columns(connection, "writer_rows", dict.fromkeys(("n", "position", "writer", "way_id"), "q"))
        replayed = dict.fromkeys(("n", "graph", "replay", "replayed_by", "t"), "q")
        self._replays = Columns(connection, "replays", {"process": "O"} | replayed | {"op": "O", "dump": "O"})
        self._notes = Columns(
            connection, "notes", {"process": "O", "t": "q", "code": "O", "message": "O", "n": "q", "count": "q"}
        )
        label = {"process": "VARCHAR", "side": "VARCHAR", "label": "VARCHAR"}
        way = {"process": "VARCHAR", "label": "VARCHAR", "writer_op": "VARCHAR", "how": "VARCHAR", "since": "VARCHAR"}
        self._labels = Shared(connection, "labels", label, scratch)
        self._layouts = Shared(connection, "layouts", {"tensor": _TENSOR}, scratch)
        self._exacts = Shared(connection, "exacts", {"exact": "VARCHAR"}, scratch)
        self._ways = Shared(connection, "ways", way, scratch)

    def call(self, call: Call) -> None:
        """All rows of a call that has ended, or of which nothing more is recorded."""
        record, process, n = call.record, call.process, call.n
        mutated = msgspec.json.encode([*call.mutated]).decode() if call.mutated else "[]"
        self._calls.add((
            n, call.line, record.t, call.duration, record.parent, record.tid, record.device, record.stream,
            record.graph, process, call.op, record.target, record.site, call.state.value, call.exception, call.message,
            call.dump, mutated, record.args is not None,
        ))  # fmt: skip
        self._all_tensors(process, n, 0, call.given, call.outputs())
        for label, links in call.links.items():
            for position, link in enumerate(links):
                self._writers.add((n, position, link.writer.n, self._way(process, label, link)))

    def replay(self, process: str, replayed: Replayed) -> None:
        """The rows of a captured call at one replay."""
        call, replay = replayed.call, replayed.call.replay
        self._replays.add((process, call.n, call.graph, replay, call.parent, call.t, call.op, replayed.dump))
        gave = flattened([("return", replayed.result.out)])
        self._all_tensors(process, call.n, replay, flattened(earlier.inputs(call)), gave)

    def note(self, process: str, record: schema.Note) -> None:
        """What was not seen, or went wrong in recording itself."""
        self._notes.add((process, record.t, record.code, record.message, record.n, record.count))

    def close(self, problems: list[str]) -> None:
        """Take in everything, and make the views."""
        for table in (self._calls, self._tensors, self._writers, self._replays, self._notes):
            table.flush()
        for shared in (self._labels, self._layouts, self._exacts, self._ways):
            shared.close()
        self._connection.execute(_CALLS)
        for view in VIEWS:
            self._connection.execute(view)
        self._connection.execute("CREATE TABLE problems (message VARCHAR)")
        for line in problems:
            self._connection.execute("INSERT INTO problems VALUES (?)", [line])

    def _way(self, process: str, label: str, link: Link) -> int:
        key = (process, label, link.writer.op, link.how, link.since)
        return self._ways.ids.get(key) or self._ways.make(key, {
            "process": process, "label": label, "writer_op": link.writer.op, "how": link.how.value, "since": link.since,
        })  # fmt: skip

    def _all_tensors(self, process: str, n: int, replay: int, given: list[Labelled], gave: list[Labelled]) -> None:
        for side, every in (("in", given), ("out", gave)):
            for place, (label, tensor) in enumerate(every):
                key = (process, side, label)
                label_id = self._labels.ids.get(key) or self._labels.make(
                    key, {"process": process, "side": side, "label": label}
                )
                self._tensors.add((n, replay, place, label_id, self._layout(tensor), *self._values(tensor)))

    def _layout(self, t: schema.Tensor) -> int:
        key = (
            t.ptr, t.shape, t.dtype, t.device, t.stride, t.offset, t.storage, t.nbytes, t.contiguous, t.requires_grad,
            t.version, t.statistics, t.kind, t.missing,
        )  # fmt: skip
        return self._layouts.ids.get(key) or self._layouts.make(key, {"tensor": _layout(t)})

    def _values(self, t: schema.Tensor) -> tuple[int, int, float, float, float, int, int]:
        """The columns of what was measured: how it is kept, and the numbers."""
        exact = 0
        form, values, lossy = _values(t) if t.min is not None or t.mean is not None or t.max is not None else _NONE
        if lossy:
            told = msgspec.json.encode([t.min, t.max, t.mean]).decode()
            exact = self._exacts.ids.get(told) or self._exacts.make(told, {"exact": told})
        form |= (t.nan_count is not None) << 6 | (t.inf_count is not None) << 7
        return exact, form, *values, t.nan_count or 0, t.inf_count or 0


_NONE = (0, (0.0, 0.0, 0.0), False)
_CALLS = """
    CREATE VIEW calls AS SELECT process, n, line, t, duration, op, target, parent, tid, site, device, stream, graph,
        state, exception, message, dump, CAST(CAST(mutated AS JSON) AS VARCHAR[]) AS mutated,
        described <> 0 AS described FROM call_rows
"""


def _values(tensor: schema.Tensor) -> tuple[int, tuple[float, float, float], bool]:
    """What the statistics were, two bits each, as numbers, and whether they are not exactly these."""
    form, lossy = 0, False
    found: list[float] = []
    for shift, value in ((0, tensor.min), (2, tensor.max), (4, tensor.mean)):
        kind, number = NONE, 0.0
        if type(value) is float:
            kind, number = FLOATING, value
        elif type(value) is int:
            kind = WHOLE
            lossy = lossy or not -_EXACT <= value <= _EXACT
            number = float(max(min(value, 2**1000), -(2**1000)))
        elif value is not None:
            kind = NAMED
            number, other = _named(str(value))
            lossy = lossy or other
        form |= kind << shift
        found.append(number)
    return form, (found[0], found[1], found[2]), lossy


def _named(text: str) -> tuple[float, bool]:
    """A statistic that is no number, and whether it is none that this could be told from."""
    known = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
    return known.get(text, float("nan")), text not in known


def _layout(tensor: schema.Tensor) -> dict[str, Any]:
    """What is kept of a tensor besides its values; a corrupt record may hold any number for an address."""
    told = {name: getattr(tensor, name) for name in TENSOR}
    return told | {"ptr": tensor.ptr % _ADDRESSES, "storage": tensor.storage % _ADDRESSES}


def tensor_of(fields: dict[str, Any], row: tuple[Any, ...]) -> schema.Tensor:
    """A tensor from its layout and the other columns of ``described``, from ``low`` on."""
    low, high, mean, nan_count, inf_count, form, exact = row
    known = {name: value for name, value in fields.items() if value is not None}
    for name in ("shape", "stride"):
        if name in known:
            known[name] = tuple(known[name])
    told = msgspec.json.decode(exact) if exact else [*_statistics(form, (low, high, mean))]
    known |= dict(zip(("min", "max", "mean"), told, strict=True))
    known["nan_count"] = nan_count if form & 64 else None
    known["inf_count"] = inf_count if form & 128 else None
    return schema.Tensor(**known)


def _statistics(form: int, values: tuple[float | None, ...]) -> Iterator[schema.Statistic | None]:
    for shift, value in zip((0, 2, 4), values, strict=True):
        kind = form >> shift & 3
        if kind == NAMED:
            yield "nan" if value is None or value != value else "inf" if value > 0 else "-inf"
        else:
            yield None if kind == NONE or value is None else int(value) if kind == WHOLE else value
