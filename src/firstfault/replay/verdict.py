"""What a replay came to: one verdict, and what it rests on.

    Replayed(verdict="MISMATCH", op="pkg.rmsnorm", text="return differs in 3 of 1,024 elements, by 0.25 at most", …)

The child process writes these, one JSON line each; the parent reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from firstfault.errors import ExitCode


class Verdict(str, Enum):
    """What a replay says of a call; the worst first."""

    CRASHED = "CRASHED"
    """It raised, was killed, or did not end."""
    MISMATCH = "MISMATCH"
    """It came back with something else than it is held against."""
    NOT_RUN = "NOT_RUN"
    """It could not be made again."""
    NO_BASELINE = "NO_BASELINE"
    """It came back, and there is nothing, or not everything, to hold its results against."""
    MATCH = "MATCH"
    """It gave, and changed, what it is held against."""

    @property
    def exit_code(self) -> ExitCode:
        """0 good, 1 bad, 125 cannot tell, as ``git bisect run`` wants it."""
        codes = {Verdict.MATCH: ExitCode.OK, Verdict.MISMATCH: ExitCode.BAD, Verdict.CRASHED: ExitCode.BAD}
        return codes.get(self, ExitCode.CANNOT_TELL)


class Difference(msgspec.Struct, omit_defaults=True):
    """One result or argument that differs.

    Attributes:
        name: ``return``, ``return[1]``; an argument as it is after the call is ``arg[0]``.
        what: ``values``, or ``shape``, ``dtype``, ``stride``, ``type``, ``value``.
        expected, actual: of ``values``, at the place where they differ most.
        differing, elements: how many elements differ, and of how many.
        at: index of the element that differs most.
        largest, relative: the largest difference, absolute and relative to what was expected.
        first: index of the first element that differs.
        allowed: the relative and absolute tolerance.
    """

    name: str
    what: str
    expected: str
    actual: str
    differing: int = 0
    elements: int = 0
    at: list[int] = []
    largest: str = ""
    relative: str = ""
    first: list[int] = []
    allowed: tuple[float, float] = (0.0, 0.0)

    @property
    def text(self) -> str:
        """One clause."""
        if self.what != "values":
            return f"{self.name} has {self.what} {self.actual} instead of {self.expected}"
        return (
            f"{self.name} differs in {self.differing:,} of {self.elements:,} elements, "
            f"most at {self.at}: {self.actual} instead of {self.expected}"
        )


class Error(msgspec.Struct):
    """How far one output is from its reference: absolute and relative errors, as numbers or ``nan``, ``inf``."""

    name: str
    largest: float | str
    mean: float | str
    relative: float | str
    elements: int


class Replayed(msgspec.Struct, omit_defaults=True):
    """One call, replayed.

    Attributes:
        verdict: what it came to.
        op, call, dump: which call it was.
        text: one sentence.
        compared: the results and arguments that were held against something.
        exact: whether all of these agree bit for bit.
        differences: what differs, in the first run that did.
        runs, bad_runs: how often it was run, and how often not to a match.
        same_each_time: whether all runs gave the same bits; None for a single one.
        against: what it was held against: ``recorded``, or the reference's name.
        independent: whether the reference is another implementation, not what was called itself.
        errors: by output, how far from the reference.
        exception, message: what it ended in.
        recorded: what it ended in when it was recorded, where that is an exception.
        notes: what else is to be known, as that a tensor is only a part of the original.
    """

    verdict: Verdict
    op: str = ""
    call: int = 0
    dump: str = ""
    text: str = ""
    compared: list[str] = []
    exact: bool = False
    differences: list[Difference] = []
    runs: int = 0
    bad_runs: int = 0
    same_each_time: bool | None = None
    against: str = "recorded"
    independent: bool = False
    errors: list[Error] = []
    exception: str = ""
    message: str = ""
    recorded: str = ""
    notes: list[str] = []


class Answer(msgspec.Struct):
    """What ``firstfault replay --json`` prints.

    Attributes:
        version: of this form.
        verdict: the worst of the calls'.
        calls: each call.
        device: that it ran on.
        minimal: what is left of the input, with ``--minimize``.
        next: the command to type next.
    """

    verdict: Verdict
    calls: list[Replayed]
    version: int = 1
    device: str = ""
    minimal: Minimal | None = None
    next: str = ""


class Minimal(msgspec.Struct, omit_defaults=True):
    """What is left of a failing input.

    Attributes:
        elements, original: elements of all tensors, after and before.
        shapes: by argument, the shape before and after.
        simple: by argument, how many of its elements are not 0 in what is left.
        tried: how many smaller inputs were run.
        folder: the dump of what is left.
        text: one sentence.
    """

    elements: int
    original: int
    shapes: dict[str, list[list[int]]]
    tried: int
    folder: str = ""
    simple: dict[str, int] = {}
    text: str = ""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; ``NOT_RUN`` of none."""
    order = list(Verdict)
    return min(verdicts, key=order.index, default=Verdict.NOT_RUN)
