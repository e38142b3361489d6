"""Calls → the rows of an index, and the tables and views that hold them.

CallRow(process="vm-4242", n=37, op="RMSNorm.forward", state="returned", duration=50000, …)
TensorRow(process="vm-4242", n=37, side="in", label="arg[0]", tensor=Tensor(…))
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from firstfault.read import earlier
from firstfault.read.calls import Call
from firstfault.read.events import Replayed
from firstfault.read.tensors import flattened
from firstfault.record import schema


class CallRow(msgspec.Struct):
    """One call; times in ns, ``described`` whether its arguments were recorded, ``t`` 0 where it is not known."""

    process: str
    n: int
    line: int
    t: int
    duration: int
    op: str
    target: str
    parent: int
    tid: int
    site: str
    device: int
    stream: int
    graph: int
    state: str
    exception: str
    message: str
    dump: str
    mutated: list[str]
    described: bool


class TensorRow(msgspec.Struct):
    """One tensor that a call was given (side ``in``) or gave (``out``); at a replay of a CUDA graph, or 0."""

    process: str
    n: int
    replay: int
    side: str
    label: str
    tensor: schema.Tensor


class WriterRow(msgspec.Struct):
    """The call that wrote what an argument holds; the last one has position 0."""

    process: str
    n: int
    label: str
    position: int
    writer: int
    writer_op: str
    how: str
    since: str


class ReplayRow(msgspec.Struct):
    """A captured call as it ran at one replay of its CUDA graph, which the call ``replayed_by`` replayed."""

    process: str
    n: int
    graph: int
    replay: int
    replayed_by: int
    t: int
    op: str
    dump: str


class NoteRow(msgspec.Struct):
    """What was not seen, or went wrong in recording itself."""

    process: str
    t: int
    code: str
    message: str
    n: int
    count: int


Row = CallRow | TensorRow | WriterRow | ReplayRow | NoteRow

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
    "min": "VARCHAR",  # a number, or the name of what is none
    "max": "VARCHAR",
    "mean": "VARCHAR",
    "nan_count": "BIGINT",
    "inf_count": "BIGINT",
    "kind": "VARCHAR",
    "missing": "VARCHAR",
}
"""What is kept of a tensor, as SQL has it."""

_TYPES = {"int": "BIGINT", "str": "VARCHAR", "bool": "BOOLEAN", "list[str]": "VARCHAR[]"}
_TYPES["schema.Tensor"] = "STRUCT(" + ", ".join(f'"{name}" {kind}' for name, kind in TENSOR.items()) + ")"

TABLES: dict[str, type[Row]] = {
    "calls": CallRow,
    "described": TensorRow,
    "writers": WriterRow,
    "replays": ReplayRow,
    "notes": NoteRow,
}
VIEWS = (
    """
    CREATE VIEW tensors AS SELECT process, n, replay, side, label, tensor.shape AS shape, tensor.dtype AS dtype,
        tensor.device AS device, tensor.stride AS stride, coalesce(tensor.offset, 0) AS storage_offset,
        coalesce(tensor.ptr, 0) AS ptr, coalesce(tensor.storage, 0) AS storage, coalesce(tensor.nbytes, 0) AS nbytes,
        coalesce(tensor.contiguous, true) AS contiguous, coalesce(tensor.requires_grad, false) AS requires_grad,
        tensor.version AS version, tensor.kind AS kind, tensor.missing AS missing FROM described
    """,
    """
    CREATE VIEW statistics AS SELECT process, n, replay, side, label, TRY_CAST(tensor.min AS DOUBLE) AS min,
        TRY_CAST(tensor.max AS DOUBLE) AS max, TRY_CAST(tensor.mean AS DOUBLE) AS mean, tensor.nan_count AS nan_count,
        tensor.inf_count AS inf_count, tensor.statistics AS why_none
        FROM described WHERE tensor.min IS NOT NULL OR tensor.statistics IS NOT NULL
    """,
)
_ADDRESSES = 2**64


def columns(row: type[Row]) -> dict[str, str]:
    """The columns of a table, with their types."""
    return {name: _TYPES[str(kind)] for name, kind in row.__annotations__.items()}


def of_call(call: Call) -> Iterator[Row]:
    """All rows of a call that has ended, or of which nothing more is recorded."""
    record, process = call.record, call.process
    yield CallRow(
        process,
        call.n,
        call.line,
        record.t,
        call.duration,
        call.op,
        record.target,
        record.parent,
        record.tid,
        record.site,
        record.device,
        record.stream,
        record.graph,
        call.state.value,
        call.exception,
        call.message,
        call.dump,
        [*call.mutated],
        record.args is not None,
    )
    for label, tensor in call.given:
        yield TensorRow(process, call.n, 0, "in", label, _bounded(tensor))
    for label, tensor in call.outputs():
        yield TensorRow(process, call.n, 0, "out", label, _bounded(tensor))
    for label, links in call.links.items():
        for position, link in enumerate(links):
            yield WriterRow(process, call.n, label, position, link.writer.n, link.writer.op, link.how.value, link.since)


def of_replay(process: str, replayed: Replayed) -> Iterator[Row]:
    """The rows of a captured call at one replay."""
    call, replay = replayed.call, replayed.call.replay
    yield ReplayRow(process, call.n, call.graph, replay, call.parent, call.t, call.op, replayed.dump)
    for label, tensor in flattened(earlier.inputs(call)):
        yield TensorRow(process, call.n, replay, "in", label, _bounded(tensor))
    for label, tensor in flattened([("return", replayed.result.out)]):
        yield TensorRow(process, call.n, replay, "out", label, _bounded(tensor))


def _bounded(tensor: schema.Tensor) -> schema.Tensor:
    """A tensor whose addresses are some: a corrupt record may hold any number."""
    if 0 <= tensor.ptr < _ADDRESSES and 0 <= tensor.storage < _ADDRESSES:
        return tensor
    return msgspec.structs.replace(tensor, ptr=tensor.ptr % _ADDRESSES, storage=tensor.storage % _ADDRESSES)
