"""A histogram of Prometheus: cumulative buckets, of which percentiles are estimated and windows are made.

Histogram({0.1: 3, 1.0: 9, inf: 10}, sum=4.2, count=10).quantile(0.5)  →  0.4
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Histogram:
    """Counts of observations.

    Attributes:
        buckets: upper bound (``le``) → observations up to it, cumulative.
        sum: of all observations.
        count: of observations.
    """

    buckets: dict[float, float] = field(default_factory=dict)
    sum: float = 0.0
    count: float = 0.0

    def add(self, suffix: str, bound: str, value: float) -> None:
        """Take in one point of a scrape; the same bound of several series is summed."""
        if math.isnan(value):
            return
        if suffix == "_sum":
            self.sum += value
        elif suffix == "_count":
            self.count += value
        else:
            try:
                le = float(bound)
            except ValueError:
                return
            self.buckets[le] = self.buckets.get(le, 0.0) + value

    @property
    def mean(self) -> float | None:
        """The average; None where nothing was observed."""
        return self.sum / self.count if self.count > 0 else None

    def minus(self, earlier: Histogram | None) -> Histogram:
        """What was observed since an earlier reading; all of it where the process has begun anew since."""
        if earlier is None or earlier.count > self.count:
            return self
        return Histogram(
            {bound: max(0.0, value - earlier.buckets.get(bound, 0.0)) for bound, value in self.buckets.items()},
            max(0.0, self.sum - earlier.sum),
            self.count - earlier.count,
        )

    def at_least(self, q: float) -> float | None:
        """What the observation at a quantile is at least: the lower bound of its bucket."""
        bounds = sorted(self.buckets)
        rank = q * (self.buckets[bounds[-1]] if bounds else 0.0)
        if not rank > 0:
            return None
        below = 0.0
        for bound in bounds:
            if self.buckets[bound] >= rank:
                return below
            below = bound
        return below

    def quantile(self, q: float) -> float | None:
        """An estimate of a quantile, linear within its bucket, as PromQL's ``histogram_quantile`` makes it.

        In the last bucket, which has no bound, it is the bound below; None where nothing was observed.
        """
        bounds = sorted(self.buckets)
        total = self.buckets[bounds[-1]] if bounds else 0.0
        if total <= 0 or math.isnan(total):
            return None
        rank = q * total
        below_bound, below = 0.0, 0.0
        for bound in bounds:
            reached = max(below, self.buckets[bound])
            if reached >= rank and reached > below:
                if math.isinf(bound):
                    return below_bound
                return below_bound + (bound - below_bound) * (rank - below) / (reached - below)
            below_bound, below = bound, reached
        return below_bound if not math.isinf(below_bound) else None
