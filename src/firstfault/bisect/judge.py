"""Whether a configuration is bad, from runs that each may or may not show it.

    Judge(threshold=1e-5, false_rate=0.0, fault_rate=0.3).verdict([0.0, 0.0, 2e-3])  →  True

A run is an outlier where its effect is beyond the threshold. Between "outliers at the baseline's rate" and "outliers
at the fault's rate" Wald's sequential probability ratio test decides, with an error of ``ERROR`` each way (Wald,
Sequential Tests of Statistical Hypotheses, 1945). Where the baseline is the same bit for bit there are no chance
outliers, and one settles it. Where the fault is presumed to show in every run, one run settles it either way; a fault
that shows in 30 % of them takes 13 good ones in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ERROR = 0.01
"""How often a configuration may be taken for bad that is not, and how often the other way."""
ALWAYS = 1 - ERROR
"""The rate of a fault that is presumed to show in every run, until one run does not."""


@dataclass(frozen=True)
class Judge:
    """One test.

    Attributes:
        threshold: the effect beyond which a run is an outlier.
        false_rate: how often a run without the fault is one.
        fault_rate: how often a run with it is one.
    """

    threshold: float
    false_rate: float
    fault_rate: float

    def outlier(self, effect: float) -> bool:
        """Whether a run with this effect is beyond what the baseline's runs are."""
        return effect > self.threshold

    def verdict(self, effects: Sequence[float]) -> bool | None:
        """True for bad, False for not, None where another run is needed."""
        outliers = sum(map(self.outlier, effects))
        if outliers and self.false_rate <= 0:
            return True
        evidence = (len(effects) - outliers) * math.log((1 - self.fault_rate) / (1 - self.false_rate))
        if outliers:
            evidence += outliers * math.log(self.fault_rate / self.false_rate)
        limit = math.log((1 - ERROR) / ERROR) * (1 - 1e-9)
        return evidence > 0 if abs(evidence) >= limit else None

    @property
    def good_runs(self) -> int:
        """How many runs without an outlier it takes to call a configuration good."""
        return math.ceil(
            math.log((1 - ERROR) / ERROR) / -math.log((1 - self.fault_rate) / (1 - self.false_rate)) - 1e-9
        )
