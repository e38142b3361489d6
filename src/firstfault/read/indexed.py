"""The calls of one process, looked up in an index by their numbers, as ``History`` has those that it keeps.

Indexed.of(index, None).find(6)  →  <moe_align, call 6> with its tensors and who wrote them
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstfault.errors import UsageError
from firstfault.read.calls import Call, State
from firstfault.read.index import connect
from firstfault.read.index_rows import tensor_of
from firstfault.read.producers import How, Link, Writer
from firstfault.read.tensors import Labelled
from firstfault.record import schema

if TYPE_CHECKING:
    import duckdb

_CALL = "SELECT op, t, target, parent, tid, site, described, state, mutated, duration FROM calls"
_OF = " WHERE process = ? AND n = ?"
_VALUES = "low, high, mean, nan_count, inf_count, form, exact"


class Indexed:
    """One process of an index."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        self._connection = connection
        self._found: dict[int, Call | None] = {}
        self.name = name

    @classmethod
    def of(cls, index: Path, name: str | None) -> Indexed:
        """The process of this name, or the only one.

        Raises:
            UsageError: which of several is meant is not said.
        """
        connection = connect(index)
        names = [str(row[0]) for row in connection.execute("SELECT DISTINCT process FROM calls ORDER BY 1").fetchall()]
        if name is None and len(names) > 1:
            raise UsageError(
                f"{index.parent} holds calls of several processes, {names[0]} and {names[1]} among them; "
                "say which with --process"
            )
        return cls(connection, name if name is not None else names[0] if names else "")

    @property
    def problems(self) -> list[str]:
        """What could not be read when the index was made."""
        return [str(row[0]) for row in self._ask("SELECT message FROM problems")]

    @property
    def calls(self) -> int:
        """How many calls the process made."""
        return int(self._ask("SELECT count(*) FROM calls WHERE process = ?", self.name)[0][0])

    def find(self, n: int) -> Call | None:
        """A call by its number."""
        if n not in self._found:
            self._found[n] = self._call(n)
        return self._found[n]

    def outputs(self, n: int) -> list[Labelled]:
        """The tensors that a call gave."""
        return self._tensors(n, "out")

    def readers(self, n: int, most: int) -> list[int]:
        """The numbers of the first calls that were given what a call wrote."""
        sql = "SELECT DISTINCT n FROM writers WHERE process = ? AND writer = ? ORDER BY n LIMIT ?"
        return [int(row[0]) for row in self._ask(sql, self.name, n, most)]

    def _call(self, n: int) -> Call | None:
        rows = self._ask(_CALL + _OF, self.name, n)
        if not rows:
            return None
        op, t, target, parent, tid, site, described, state, mutated, duration = rows[0]
        record = schema.Call(n, t, op, target, parent, tid, site, args=[] if described else None)
        call = Call(self.name, record)
        call.state, call.mutated, call.duration = State(state), mutated, duration
        call.given, call.links = self._tensors(n, "in"), self._links(n)
        return call

    def _tensors(self, n: int, side: str) -> list[Labelled]:
        sql = f"SELECT label, tensor, {_VALUES} FROM described{_OF} AND side = ? AND replay = 0 ORDER BY place"  # noqa: S608
        return [(label, tensor_of(fields, row)) for label, fields, *row in self._ask(sql, self.name, n, side)]

    def _links(self, n: int) -> dict[str, list[Link]]:
        sql = f"SELECT label, writer, writer_op, how, since FROM writers{_OF} ORDER BY label, position"  # noqa: S608
        links: dict[str, list[Link]] = {}
        for label, writer, op, how, since in self._ask(sql, self.name, n):
            links.setdefault(label, []).append(Link(Writer(writer, op), How(how), since))
        return links

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        return self._connection.execute(sql, [*values]).fetchall()
