"""Smallest failing sets: found whatever is planted, 1-minimal whatever fails, and in few tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.bisect.search import Inconsistent, minimal_set, reduced


class Counted:
    """An oracle that counts what it is asked for the first time, as runs that are remembered do."""

    def __init__(self, fails: Callable[[frozenset[int]], bool]) -> None:
        self._fails = fails
        self.asked: set[frozenset[int]] = set()

    def __call__(self, chosen: frozenset[int]) -> bool:
        self.asked.add(chosen)
        return self._fails(chosen)


@st.composite
def planted(draw: st.DrawFn, most: int) -> tuple[int, set[int]]:
    count = draw(st.integers(1, 80))
    return count, draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=min(most, count)))


@given(planted(5))
def test_what_fails_only_together_is_found(given_: tuple[int, set[int]]) -> None:
    count, culprits = given_
    assert set(minimal_set(range(count), lambda chosen: culprits <= chosen)) == culprits


@given(planted(1))
def test_one_among_n_takes_as_many_tests_as_halving(given_: tuple[int, set[int]]) -> None:
    count, culprits = given_
    oracle = Counted(lambda chosen: culprits <= chosen)
    minimal_set(range(count), oracle)
    assert len(oracle.asked) <= math.ceil(math.log2(count)) + 2


@given(planted(5))
def test_each_further_one_takes_as_many_again(given_: tuple[int, set[int]]) -> None:
    count, culprits = given_
    oracle = Counted(lambda chosen: culprits <= chosen)
    minimal_set(range(count), oracle)
    each = math.ceil(math.log2(count)) + 2
    assert len(oracle.asked) <= len(culprits) * each + len(culprits)


@given(st.data(), st.integers(1, 12))
def test_whatever_fails_what_is_found_is_minimal(data: st.DataObject, count: int) -> None:
    """Sets drawn at random fail, so that nothing is monotone; all together fail, and none does not."""
    drawn: dict[frozenset[int], bool] = {frozenset(): False, frozenset(range(count)): True}

    def fails(chosen: frozenset[int]) -> bool:
        if chosen not in drawn:
            drawn[chosen] = data.draw(st.booleans())
        return drawn[chosen]

    found = minimal_set(range(count), fails)
    assert fails(frozenset(found))
    for member in found:
        assert not fails(frozenset(found) - {member})


@given(st.lists(st.sets(st.integers(0, 20), min_size=1, max_size=3), min_size=1, max_size=4))
def test_of_several_sets_one_is_found(sets: list[set[int]]) -> None:
    found = set(minimal_set(range(21), lambda chosen: any(one <= chosen for one in sets)))
    assert found in sets


def test_what_fails_with_nothing_on_is_not_blamed_on_anything() -> None:
    with pytest.raises(Inconsistent):
        minimal_set(range(8), lambda chosen: True)


def test_what_never_fails_is_not_blamed_on_anything() -> None:
    with pytest.raises(Inconsistent):
        minimal_set(range(8), lambda chosen: False)


def test_what_is_not_needed_is_left_out() -> None:
    assert reduced([1, 2, 3, 4], lambda chosen: {2, 4} <= chosen) == [2, 4]
