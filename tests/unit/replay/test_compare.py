"""Tensors held against each other: what differs, where, and by how much."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.replay import compare
from firstfault.replay.compare import Pair

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64,
    torch.float8_e4m3fn,
]  # fmt: skip


def differ(one: torch.Tensor, two: torch.Tensor) -> compare.Compared:
    return compare.compare([Pair("x", one, two)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_is_itself(dtype: torch.dtype) -> None:
    tensor = torch.randn(5, 7).mul(3).to(dtype)
    assert differ(tensor, tensor.clone()) == ([], True)
    assert differ(tensor.t(), tensor.clone().t()) == ([], True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_element_that_differs_is_found(dtype: torch.dtype) -> None:
    tensor = torch.zeros(5, 7).to(dtype)
    other = tensor.clone()
    other[3, 4] = 1
    [found], exact = differ(tensor, other)
    assert not exact
    assert (found.what, found.differing, found.elements, found.at, found.first) == ("values", 1, 35, [3, 4], [3, 4])


def test_nan_equals_nan_and_nothing_else() -> None:
    nan, inf = math.nan, math.inf
    assert differ(torch.tensor([nan, inf, -inf]), torch.tensor([nan, inf, -inf])) == ([], True)
    for one, two in [(nan, 1.0), (1.0, nan), (inf, -inf), (inf, 3e38), (inf, nan)]:
        [found], _ = differ(torch.tensor([one]), torch.tensor([two]))
        assert found.largest in ("inf", "nan")


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e-3, 1e-3))
def test_the_tolerance_is_that_of_assert_close(value: float, off: float) -> None:
    one, two = torch.tensor([value]), torch.tensor([value * (1 + off)])
    try:
        torch.testing.assert_close(two, one)
        close = True
    except AssertionError:
        close = False
    assert (not differ(one, two).differences) == close


def test_within_the_tolerance_is_no_difference_and_not_exact() -> None:
    assert differ(torch.tensor([1.0]), torch.tensor([1.0 + 1e-6])) == ([], False)


@pytest.mark.parametrize(
    ("two", "what"),
    [(torch.zeros(3, 2), "shape"), (torch.zeros(2, 3).double(), "dtype"), (torch.zeros(3, 2).t(), "stride")],
)
def test_layouts_count(two: torch.Tensor, what: str) -> None:
    [found], _ = differ(torch.zeros(2, 3), two)
    assert found.what == what


def test_strides_that_lead_nowhere_do_not_count() -> None:
    assert differ(torch.zeros(1, 3), torch.zeros(3, 1).t()) == ([], True)


def test_sparse_and_quantized_tensors_are_compared_by_their_parts() -> None:
    sparse = torch.eye(3).to_sparse()
    assert differ(sparse, sparse.clone()).exact
    assert differ(sparse, (sparse * 2).coalesce()).differences
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    assert differ(quantized, quantized.clone()).exact


def test_large_tensors_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "PIECE", 10)
    one = torch.zeros(5, 7)
    two = one.clone()
    two[1, 1], two[4, 6] = 1, 2
    [found], _ = differ(one, two)
    assert (found.differing, found.first, found.at, found.actual) == (2, [1, 1], [4, 6], "2.0")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_an_index_is_found_again(shape: list[int], data: st.DataObject) -> None:
    flat = data.draw(st.integers(0, math.prod(shape) - 1))
    index = compare.index_of(flat, tuple(shape))
    assert torch.arange(math.prod(shape)).reshape(shape)[tuple(index)] == flat
