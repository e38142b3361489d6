"""How far two results are apart, against plain arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.dispatch import errors
from firstfault.dispatch.errors import TOLERANCES, Difference, difference, worst

VALUES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20)
DTYPES = st.sampled_from(sorted(TOLERANCES, key=str))


@given(VALUES, DTYPES)
def test_what_is_equal_has_no_difference(values: list[float], dtype: torch.dtype) -> None:
    x = torch.tensor(values).to(dtype)
    found = difference(x, x.clone())
    assert (found.max_abs, found.relative, found.ulp, found.error, found.over) == (0, 0, 0, 0, 0)
    assert found.cosine == pytest.approx(1)


@given(VALUES, VALUES)
def test_the_numbers_are_those_of_numpy(first: list[float], second: list[float]) -> None:
    size = min(len(first), len(second))
    got, expected = np.array(first[:size]), np.array(second[:size])
    found = difference(torch.tensor(got), torch.tensor(expected))
    apart = np.abs(got - expected)
    assert found.max_abs == pytest.approx(apart.max())
    if np.linalg.norm(expected) > 0:
        assert found.relative == pytest.approx(np.linalg.norm(got - expected) / np.linalg.norm(expected))
        scale = np.sqrt(np.mean(expected**2))
        assert found.error == pytest.approx((apart / (np.abs(expected) + scale)).max())
    if np.linalg.norm(got) * np.linalg.norm(expected) > 0:
        assert found.cosine == pytest.approx(
            got @ expected / (np.linalg.norm(got) * np.linalg.norm(expected)), abs=1e-9
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_next_number_is_one_unit_away(dtype: torch.dtype) -> None:
    ones = torch.ones(8, dtype=dtype)
    following = ones + torch.finfo(dtype).eps
    assert difference(following, ones).ulp == 1.0
    assert difference(following, ones).over < 1


def test_a_value_that_is_not_finite_on_one_side_alone_is_past_every_tolerance() -> None:
    expected = torch.tensor([1.0, math.nan, math.inf, 4.0])
    assert difference(expected, expected).over == 0
    for broken in (math.nan, math.inf):
        got = torch.tensor([broken, math.nan, math.inf, 4.0])
        found = difference(got, expected)
        assert found.over == math.inf
        assert found.why == "1 of 4 values are NaN or infinite on one side alone"
        assert found.max_abs == 0  # of those that can be subtracted


def test_other_shapes_are_past_every_tolerance() -> None:
    found = difference(torch.zeros(2), torch.zeros(3))
    assert (found.over, found.why) == (math.inf, "shape (2,), not (3,)")


def test_integers_and_truth_values_are_to_be_equal() -> None:
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 2])).over == 0
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])).over == math.inf
    assert difference(torch.tensor([True]), torch.tensor([False])).over == math.inf
    assert difference(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64)).over == 0


def test_a_sum_that_cancels_is_held_to_the_scale_of_its_tensor() -> None:
    expected = torch.tensor([1000.0, 0.0])
    assert difference(torch.tensor([1000.0, 1e-3]), expected).over < 1
    assert difference(torch.tensor([1000.0, 1.0]), expected).over > 1


def test_a_tolerance_can_be_given_and_the_dtype_of_the_inputs_counts() -> None:
    got, expected = torch.tensor([1.01]), torch.tensor([1.0])
    assert difference(got, expected).over > 1
    assert difference(got, expected, relative=0.1).over < 1
    assert difference(got, expected, dtype=torch.bfloat16).tolerance == TOLERANCES[torch.bfloat16]
    assert difference(torch.tensor([1]), torch.tensor([2]), relative=0.9).over == math.inf


def test_complex_numbers_are_compared_by_their_parts() -> None:
    expected = torch.tensor([1 + 1j])
    assert difference(expected, expected).over == 0
    assert difference(torch.tensor([1 + 1.5j]), expected).max_abs == 0.5


def test_of_several_tensors_each_number_is_the_worst() -> None:
    several = [Difference(1, 2, 0.9, 4, 0.1, 1.0), Difference(2, 1, 0.8, 3, 0.5, 2.0, "why")]
    found = worst(several)
    assert (found.max_abs, found.relative, found.cosine, found.ulp) == (2, 2, 0.8, 4)
    assert (found.error, found.tolerance, found.why) == (0.5, 2.0, "why")
    assert worst([]).over == 0


def test_of_a_large_tensor_the_values_that_differ_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "LARGEST_WHOLE", 10)
    got, expected = torch.ones(4, 5), torch.ones(4, 5)
    assert difference(got, expected).over == 0
    got[1, 2], got[3, 4] = 3.0, math.nan
    found = difference(got, expected)
    assert (found.max_abs, found.error, found.why) == (
        2.0,
        math.inf,
        "1 of 20 values are NaN or infinite on one side alone",
    )
