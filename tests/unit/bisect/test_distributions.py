"""Quantiles, held against mpmath and against tables."""

from __future__ import annotations

import mpmath  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.bisect import distributions as of


@given(st.floats(0.001, 0.999), st.floats(0.5, 60), st.floats(0.5, 60))
def test_the_incomplete_beta_function_is_mpmaths(x: float, a: float, b: float) -> None:
    assert of.beta_cdf(x, a, b) == pytest.approx(float(mpmath.betainc(a, b, 0, x, regularized=True)), abs=1e-10)


@given(st.floats(0.001, 0.999), st.floats(0.5, 60), st.floats(0.5, 60))
def test_a_quantile_is_where_the_distribution_gets_to(p: float, a: float, b: float) -> None:
    assert of.beta_cdf(of.beta_quantile(p, a, b), a, b) == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "freedom", "value"), [(0.975, 1, 12.7062), (0.99, 7, 2.99795), (0.975, 30, 2.04227), (0.95, 4, 2.13185)]
)
def test_students_t_is_the_tables(p: float, freedom: int, value: float) -> None:
    assert of.t_quantile(p, freedom) == pytest.approx(value, abs=1e-4)


def test_intervals_of_rates_are_clopper_and_pearsons() -> None:
    assert of.rate_interval(4, 13) == pytest.approx((0.0909, 0.6143), abs=1e-4)
    assert of.rate_interval(0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert of.least_rate(3, 3) == pytest.approx(0.05 ** (1 / 3), abs=1e-9)
    assert of.most_rate(0, 29) == pytest.approx(1 - 0.05 ** (1 / 29), abs=1e-9)


def test_the_interval_of_a_mean() -> None:
    assert of.mean_interval([3.0]) == (3.0, 3.0)
    assert of.mean_interval([2.0, 2.0]) == (2.0, 2.0)
    assert of.mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


@pytest.mark.parametrize(("count", "factor"), [(8, 4.35), (10, 3.98), (20, 3.30)])
def test_the_tolerance_limit_is_near_the_tables(count: int, factor: float) -> None:
    """One-sided factors for 99 % of a normal distribution with 95 % confidence (ISO 16269-6)."""
    values = [float(at) for at in range(count)]
    spread = (sum((value - (count - 1) / 2) ** 2 for value in values) / (count - 1)) ** 0.5
    assert (of.tolerance_limit(values, 0.01) - (count - 1) / 2) / spread == pytest.approx(factor, rel=0.02)
