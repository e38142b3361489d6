"""Percentiles lie in their bucket, and a window is what was added since."""

from __future__ import annotations

import bisect
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.histogram import Histogram

BOUNDS = [0.01, 0.1, 1.0, 10.0, math.inf]
SECONDS = st.lists(st.floats(0.0, 9.9), min_size=1, max_size=60)


def histogram(values: list[float]) -> Histogram:
    buckets = {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}
    return Histogram(buckets, math.fsum(values), float(len(values)))


@given(SECONDS, st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    found = histogram(values).quantile(q)
    true = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    place = bisect.bisect_left(BOUNDS, true)
    lower = BOUNDS[place - 1] if place else 0.0
    assert found is not None
    assert lower - 1e-9 <= found <= BOUNDS[place] + 1e-9
    least = histogram(values).at_least(q)
    assert least is not None
    assert least <= true


@given(SECONDS, SECONDS)
def test_a_window_is_what_was_added(before: list[float], added: list[float]) -> None:
    window = histogram(before + added).minus(histogram(before))
    expected = histogram(added)
    assert window.count == expected.count
    assert window.buckets == expected.buckets
    assert window.sum == pytest.approx(expected.sum, abs=1e-9)


def test_a_restart_is_no_window() -> None:
    assert histogram([1.0]).minus(histogram([1.0, 2.0])).count == 1.0


def test_without_observations_there_is_nothing() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram().mean is None
    assert Histogram({1.0: 0.0, math.inf: 0.0}).quantile(0.5) is None
    assert Histogram({math.inf: 3.0}, 3.0, 3.0).quantile(0.5) == 0.0
