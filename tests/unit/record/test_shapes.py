"""Strides and contiguity, as torch has them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record.shapes import is_contiguous, usual_strides

SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@given(SHAPES)
def test_the_strides_of_a_new_tensor(shape: tuple[int, ...]) -> None:
    assert usual_strides(shape) == torch.empty(shape).stride()


@given(SHAPES, st.data())
def test_contiguity(shape: tuple[int, ...], data: st.DataObject) -> None:
    strides = data.draw(st.tuples(*[st.integers(0, 12) for _ in shape]) | st.just(usual_strides(shape)))
    assert is_contiguous(shape, strides) == torch.empty(9999).as_strided(shape, strides).is_contiguous()


def test_sizes_that_no_tensor_has_do_not_grow() -> None:
    shape = (2**62,) * 1000
    assert max(usual_strides(shape)) == 2**63 - 1
    assert not is_contiguous(shape, shape)
