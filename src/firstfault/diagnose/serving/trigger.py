"""A stream of samples → what fires: a signal that weighs, and that is still there at the next sample.

Trigger().judge(sample)  →  "", "", "FF903"
"""

from __future__ import annotations

from collections import deque

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import check_all
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem
from firstfault.read.bundle import Bundle, Result, Sample
from firstfault.record import bundle as files

WINDOW = 6
"""Samples that are looked at together."""
AGAIN = 2
"""Samples in a row at which the same must be seen."""
SILENT = 3
"""Samples in a row without an answer that are a server that is down."""
_NEVER = frozenset({Problem.IDLE, Problem.NONE, Problem.CANNOT_TELL, Problem.DRIFT})


class Trigger:
    """Looks at a window of the latest samples."""

    def __init__(self, window: int = WINDOW) -> None:
        self._samples: deque[Sample] = deque(maxlen=window)
        self._seen: dict[str, int] = {}
        self._silent = 0
        self._answered = False

    def judge(self, sample: Sample) -> str:
        """The rule that fires at this sample, empty where none does."""
        if not sample.metrics.points and not sample.loads:
            self._silent += 1
            return "FF919" if self._answered and self._silent >= SILENT else ""
        self._silent, self._answered = 0, True
        self._samples.append(sample)
        bundle = Bundle("", samples=list(self._samples))
        bundle.results[files.METRICS] = Result(files.METRICS, "/metrics", 200, True)
        weighty = {
            one.rule
            for one in check_all(Scene(bundle))
            if one.confidence is Confidence.HIGH and not one.background and one.problem not in _NEVER
        }
        self._seen = {rule: self._seen.get(rule, 0) + 1 for rule in weighty}
        return next((rule for rule, times in sorted(self._seen.items()) if times >= AGAIN), "")
