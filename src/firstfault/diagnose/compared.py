"""What a comparison of two records says: its sides, the calls that are not alike, what else differs, what it comes to.

Comparison(verdict="differs", conclusion="norm (call 3 | call 4) is the first …", paired=812, gave=5, first=Pair(…), …)
"""

from __future__ import annotations

from enum import Enum

import msgspec

from firstfault.diagnose.diagnosis import Diagnosis
from firstfault.diagnose.equality import Difference, ElementDifference

COMPARISON_VERSION = 1
MOST_TEXT = 400


class Verdict(str, Enum):
    """How two records compare."""

    SAME = "same"
    DIFFERS = "differs"
    CANNOT_TELL = "could not tell"


class Side(msgspec.Struct):
    """One of the two: where it is from, and how many calls of it were looked at."""

    source: str
    process: str = ""
    rank: str = ""
    calls: int = 0


class Pair(msgspec.Struct, omit_defaults=True):
    """The same call on both sides.

    Attributes:
        left, right: its numbers.
        order: which of the pairs it is, as they ended, from 1.
        sites: where it was made.
        differences: what of its results, or where these are ``given`` of its arguments, is not the same.
        writers: the calls on the left that wrote the arguments that are not, by argument.
        layouts: how the layout of arguments that hold the same is not.
        origin, origin_op: the call on the right that wrote the first argument whose values or layout are not the same.
        elements: of what is not, element by element, where both sides saved it.
        relative: how far results are apart, relative to their largest magnitude, as far as statistics tell.
        single: whether all of these are single-precision numbers.
        raised: what the side that raised said.
    """

    op: str
    left: int
    right: int
    order: int
    sites: list[str] = []
    differences: list[Difference] = []
    writers: dict[str, str] = {}
    layouts: list[Difference] = []
    origin: int = 0
    origin_op: str = ""
    elements: list[ElementDifference] = []
    relative: float = 0.0
    single: bool = False
    raised: str = ""


class Unpaired(msgspec.Struct):
    """A call that only one side has: ``left`` or ``right``."""

    side: str
    call: int
    op: str


class Change(msgspec.Struct):
    """Something of the environment that is not the same; empty where one side does not have it."""

    name: str
    left: str
    right: str


class Slower(msgspec.Struct):
    """An operator whose calls take longer on the right: in nanoseconds, the medians without the calls inside."""

    op: str
    calls: int
    left: int
    right: int

    @property
    def in_words(self) -> str:
        """``packed_linear takes 12 times as long on the right (0.8 → 9.6 ms a call)``."""
        shown = f"{self.left / 1e6:.3g} → {self.right / 1e6:.3g} ms a call, the median of {self.calls}"
        return f"{self.op} takes {self.right / max(self.left, 1):.3g} times as long on the right ({shown})"


class Unused(msgspec.Struct):
    """An argument that was another on each side, and of whose operator the results were the same all the same."""

    op: str
    call: int
    name: str
    left: str
    right: str
    pairs: int


class Comparison(msgspec.Struct, omit_defaults=True):
    """The whole answer.

    Attributes:
        paired: calls that both sides have.
        measured: those of them of which all values were recorded on both sides.
        gave: how many were given the same and gave something else.
        first: the first of them.
        given: the first that was given something else.
        only: the first calls that one side alone has; ``only_left`` and ``only_right`` are how many there are.
        compared: how many tensors were held against each other element by element, as both sides had saved them.
        slower: the operators whose calls take longer on the right.
        unused: arguments that were another on each side, for the same results.
        environment: what differs in versions, variables, devices and the command.
        diagnosis: what it comes to; None where nothing is to be blamed.
        problems: what could not be read.
    """

    version: int
    verdict: Verdict
    conclusion: str
    left: Side
    right: Side
    paired: int = 0
    measured: int = 0
    gave: int = 0
    first: Pair | None = None
    given: Pair | None = None
    only: list[Unpaired] = []
    only_left: int = 0
    only_right: int = 0
    compared: int = 0
    slower: list[Slower] = []
    unused: list[Unused] = []
    environment: list[Change] = []
    diagnosis: Diagnosis | None = None
    problems: list[str] = []


def plain(text: str) -> str:
    """A text of the program's, cut where it is endless."""
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"
