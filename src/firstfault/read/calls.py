"""One call: what it was given, what became of it, and who wrote what it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from firstfault.read import earlier
from firstfault.read.producers import Link, Writer
from firstfault.read.tensors import Labelled, flattened
from firstfault.record import schema

CONTROL_FLOW = {"GeneratorExit", "StopIteration", "StopAsyncIteration", "CancelledError", "_StopRecomputationError"}
"""Exceptions that end a call as it was meant to."""


class State(str, Enum):
    """What became of a call."""

    IN_FLIGHT = "in flight"
    RETURNED = "returned"
    RAISED = "raised"
    UNKNOWN = "not known"


class Call:
    """One call, as far as it was recorded."""

    state = State.IN_FLIGHT
    out: schema.Value = None
    out_described = False
    mutated: Sequence[str] = ()
    exception = ""
    message = ""
    dump = ""
    dump_skipped = ""
    duration = 0
    inside = 0
    """Nanoseconds that the calls inside it took."""
    outlived = False
    """Whether a call that began inside it has come back."""
    writer: Writer | None = None
    """The call as what wrote its results; None as long as it has not come back."""

    def __init__(self, process: str, record: schema.Call, line: int = 0) -> None:
        self.process = process
        self.record = record
        self.line = line
        self.given: list[Labelled] = []
        """The tensors among its arguments."""
        self.links: Mapping[str, list[Link]] = {}
        self.weight = 0

    @property
    def n(self) -> int:
        """Its number."""
        return self.record.n

    @property
    def op(self) -> str:
        """Its operator."""
        return self.record.op

    def inputs(self) -> Iterator[tuple[str, schema.Value]]:
        """Its arguments by name, ``arg[0]`` for positional ones."""
        return earlier.inputs(self.record)

    def outputs(self) -> list[Labelled]:
        """The tensors that it gave back."""
        return flattened([("return", self.out)])

    def strip(self) -> None:
        """Forget all but what a list of calls shows."""
        self.record.args = self.record.kwargs = self.out = None
        self.given, self.links = [], {}

    @property
    def ended_as_meant(self) -> bool:
        """Whether its exception is only how programs leave a loop, or exit without complaint."""
        exits = self.exception == "SystemExit" and self.message in ("", "0", "None", "False")
        return exits or self.exception in CONTROL_FLOW
