"""Quantiles of Student's t and of the beta distribution, and what is made of them.

    rate_interval(4, 13)  →  (0.09, 0.61)

The incomplete beta function is the continued fraction of Numerical Recipes (Press et al., 6.4), accurate to 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

_TINY = 1e-300
_MOST_TERMS = 500


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) * _fraction(x, a, b) / a


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x of which the beta distribution function is ``p``."""
    return _inverse(lambda x: beta_cdf(x, a, b), p, 0.0, 1.0)


def t_quantile(p: float, freedom: float) -> float:
    """The ``p`` quantile of Student's t with ``freedom`` degrees, for ``p`` of at least one half."""
    x = beta_quantile(2 * (1 - p), freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - x) / x) if x > 0 else math.inf


def rate_interval(hits: int, runs: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's exact interval for a rate of which ``hits`` of ``runs`` were seen."""
    tail = (1 - level) / 2
    low = beta_quantile(tail, hits, runs - hits + 1) if hits else 0.0
    high = beta_quantile(1 - tail, hits + 1, runs - hits) if hits < runs else 1.0
    return low, high


def least_rate(hits: int, runs: int, level: float = 0.95) -> float:
    """The one-sided lower bound of a rate."""
    return beta_quantile(1 - level, hits, runs - hits + 1) if hits else 0.0


def most_rate(hits: int, runs: int, level: float = 0.95) -> float:
    """The one-sided upper bound of a rate."""
    return beta_quantile(level, hits + 1, runs - hits) if hits < runs else 1.0


def tolerance_limit(values: Sequence[float], error: float, confidence: float = 0.95) -> float:
    """What at most a share ``error`` of a normal distribution is beyond, as far as some values of it can tell.

    The factor is Natrella's (NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.6.3), for at least four values.
    """
    count = len(values)
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    share, sure = NormalDist().inv_cdf(1 - error), NormalDist().inv_cdf(confidence)
    a = 1 - sure**2 / (2 * (count - 1))
    b = share**2 - sure**2 / count
    return mean + spread * (share + math.sqrt(max(0.0, share**2 - a * b))) / a


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The t interval of a mean; of a single value, or of equal ones, that value."""
    count = len(values)
    mean = math.fsum(values) / count
    if not math.isfinite(mean) or count == 1 or min(values) == max(values):
        return min(values), max(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile((1 + level) / 2, count - 1) * spread / math.sqrt(count)
    return mean - half, mean + half


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's method for the continued fraction of the incomplete beta function."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + numerator * d)
            c = _away(1 + numerator / c)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _inverse(rising: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2
