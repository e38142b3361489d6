"""What of an incident has to come back when its requests are sent again.

    Criterion(Symptom.SLOW, Metric.TTFT, 0.5)  →  a first token that takes longer than half a second

Nothing heavy is imported here: the help of each command that asks for it would load that too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Symptom(str, Enum):
    """What counts as wrong."""

    AUTO = "auto"
    FAILURE = "failure"
    OUTPUT = "output"
    SLOW = "slow"


class Metric(str, Enum):
    """Which time is looked at."""

    TTFT = "ttft"
    ITL = "itl"
    E2E = "e2e"

    @property
    def words(self) -> str:
        """As a sentence has it."""
        return {"ttft": "time to first token", "itl": "time between tokens", "e2e": "time to the end"}[self.value]


@dataclass(frozen=True)
class Criterion:
    """What has to come back.

    Attributes:
        symptom: what is looked at.
        metric: which time, for the slow; None for the first of those that were measured both times.
        threshold: seconds; the slow are those that take longer. None to go by what they had taken.
    """

    symptom: Symptom = Symptom.AUTO
    metric: Metric | None = None
    threshold: float | None = None
