"""What every format parser yields: records, each with the process that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from firstfault.record import schema

Advance = Callable[[int], None]
"""Told of every so many bytes read, for a progress bar."""

MOST_PROBLEMS = 100


class Replayed(NamedTuple):
    """A captured call as it ran at one replay of its CUDA graph.

    Attributes:
        call: as it was captured, with the values at the replay; its ``parent`` is the call that replayed the graph.
        result: likewise.
        dump: where its tensors at that replay were saved; empty where they were not.
    """

    call: schema.Call
    result: schema.Return
    dump: str = ""


class Event(NamedTuple):
    """One record of one process; ``line`` is where it begins in a text log, from 1."""

    process: str
    record: schema.Record | Replayed
    line: int = 0


@dataclass
class Problems:
    """What could not be read, in the order met: the same thing at the same place once, with a count."""

    counts: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    """Problems beyond ``MOST_PROBLEMS`` different ones."""

    def add(self, message: str) -> None:
        """Note that something was left out."""
        if message in self.counts or len(self.counts) < MOST_PROBLEMS:
            self.counts[message] = self.counts.get(message, 0) + 1
        else:
            self.left_out += 1

    def merge(self, others: Problems) -> None:
        """Take in those of another input."""
        for message, count in others.counts.items():
            self.add(message)
            if message in self.counts:
                self.counts[message] += count - 1
        self.left_out += others.left_out

    def lines(self) -> list[str]:
        """One line a problem."""
        shown = [message if count == 1 else f"{message} ({count} times)" for message, count in self.counts.items()]
        return [*shown, f"{self.left_out} more problems"] if self.left_out else shown


class Source(Protocol):
    """An input that has been recognised.

    Attributes:
        kind: what it is, in words.
        path: where it lies.
        problems: what could not be read; filled while ``events`` runs.
    """

    kind: str
    path: Path
    problems: Problems

    def events(self, advance: Advance) -> Iterator[Event]:
        """Every record in it, in the order in which its processes wrote them, in constant memory.

        Raises:
            UnreadableInput: nothing of it can be read.
        """
