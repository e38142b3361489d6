"""``score:PATH`` or ``score:stdout``: one number that the command works out, such as ``119/198`` questions right.

The last number of the output counts. Of ``right/questions`` the sampling error is known: a difference is one only
beyond 2.58 standard errors of two shares (99 %), so that one question more of fifty is none. A number without a count
has no such error, and needs ``--tolerance`` where less than the whole matters.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from firstfault.bisect.probes.probe import NoAnswer, Output, Tolerance, ended_well
from firstfault.bisect.probes.tokens import LARGEST, STDOUT
from firstfault.errors import UsageError
from firstfault.read.files import read_whole

SURE = 2.5758
"""Standard errors that hold 99 % of chance differences."""
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)(?:\s*/\s*(\d+))?", re.IGNORECASE)


@dataclass(frozen=True)
class Share:
    """A score.

    Attributes:
        value: the share that is right, or the number.
        count: of how many, if that is known.
    """

    value: float
    count: int | None = None

    @property
    def error(self) -> float:
        """Of a difference of two such scores, what chance explains."""
        if not self.count:
            return 0.0
        share = (self.value * self.count + 1) / (self.count + 2)  # so that 0 of 50 has an error too
        return SURE * math.sqrt(2 * share * (1 - share) / self.count)


@dataclass(frozen=True)
class Score:
    """Difference of a score."""

    path: str

    KIND: ClassVar[str] = "score"
    UNIT: ClassVar[str] = "score"
    SHARE: ClassVar[float] = 1 / 3

    def read(self, output: Output) -> Share:
        """The last number."""
        ended_well(output)
        file = output.stdout if self.path == STDOUT else output.saved
        if file is None:
            raise NoAnswer("it has not written the file of the probe")
        found = _NUMBER.findall(read_whole(file, LARGEST).decode("utf-8", "replace"))
        if not found:
            raise NoAnswer("there is no number in its output")
        return share(*found[-1])

    def wrong(self, seen: Share) -> str:
        """A score that is no number."""
        return "" if math.isfinite(seen.value) else f"the score is {seen.value}"

    def effect(self, seen: Share, other: Share) -> float:
        """The difference of both."""
        difference = abs(seen.value - other.value)
        return difference if math.isfinite(difference) else math.inf

    def tolerance(self, seen: Share) -> Tolerance:
        """The sampling error, where the count is known."""
        return Tolerance(seen.error, max(seen.error, 0.0) or math.inf)


def typed(text: str) -> Share:
    """A score that was typed, ``26/50``.

    Raises:
        UsageError: it is none.
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text} is neither a file nor a score, such as 26/50 or 0.52")
    return share(found[1], found[2] or "")


def share(number: str, count: str = "") -> Share:
    """A score as it was written, ``119`` of ``198`` or ``0.6``."""
    if count and int(count):
        return Share(float(number) / int(count), int(count))
    return Share(float(number))


def enough(share_right: float, difference: float) -> int:
    """How many questions tell a difference from chance, at 99 % and found 80 % of the time."""
    return math.ceil(2 * share_right * (1 - share_right) * ((SURE + 0.8416) / difference) ** 2)
