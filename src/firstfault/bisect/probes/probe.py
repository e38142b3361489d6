"""What every probe is, and the output of a run that it reads.

probes.parse("logits:{dir}/logits.npz")  →  Logits(path="{dir}/logits.npz")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

FOLDER = "{dir}"
"""Stands for a run's own folder, in a probe's path and in the command."""


class NoAnswer(Exception):
    """A run that has left nothing to look at; the message says why."""


class Skipped(NoAnswer):
    """A run that says itself that it cannot tell."""


@dataclass(frozen=True)
class Output:
    """What a run has left.

    Attributes:
        status: the exit status, negative for a signal, None for a server that was ended when it had answered.
        saved: the file that the probe's path led to, if it has one.
        stdout: what was written there.
        answers: a server's answers, one JSON object a line, if it was asked.
    """

    status: int | None
    saved: Path | None = None
    stdout: Path | None = None
    answers: Path | None = None


@dataclass(frozen=True)
class Tolerance:
    """What is no difference worth a search.

    Attributes:
        least: below it right implementations may always be apart.
        most: beyond it the reference is not right.
    """

    least: float
    most: float


class Probe(Protocol):
    """One kind.

    Attributes:
        KIND: its name on the command line.
        UNIT: what its effects are counted in.
        SHARE: which part of the whole effect an operator must show to be blamed, 0 where effects do not add up.
        path: the file that the command writes, if any.
    """

    KIND: ClassVar[str]
    UNIT: ClassVar[str]
    SHARE: ClassVar[float]

    @property
    def path(self) -> str | None:
        """The file that the command writes, with ``{dir}`` for the run's folder."""

    def read(self, output: Output) -> Any:
        """The observation of a run.

        Raises:
            NoAnswer: there is nothing to look at.
            UnreadableInput: what there is cannot be read.
        """

    def wrong(self, seen: Any) -> str:
        """What is wrong with an observation by itself, such as NaN; empty if nothing."""

    def effect(self, seen: Any, other: Any) -> float:
        """How far an observation is from another one."""

    def tolerance(self, seen: Any) -> Tolerance:
        """What is no difference yet, for observations like this."""


def ended_well(output: Output) -> None:
    """Nothing, of a run whose output can be looked at.

    Raises:
        NoAnswer: it ended otherwise than with 0.
    """
    if output.status:
        how = f"signal {-output.status}" if output.status < 0 else f"exit status {output.status}"
        raise NoAnswer(f"it ended with {how}")
