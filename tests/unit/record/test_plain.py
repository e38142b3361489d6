"""What JSON and UTF-8 can carry."""

from __future__ import annotations

import math

import pytest

from firstfault.record.plain import plain_number, plain_text


@pytest.mark.parametrize(("text", "plain"), [("", ""), ("a\n", "a\n"), ("ü𝄞", "ü𝄞"), ("\ud800x", "\\ud800x")])
def test_text(text: str, plain: str) -> None:
    assert plain_text(text) == plain
    plain.encode()


@pytest.mark.parametrize(("value", "plain"), [(1, 1), (0.5, 0.5), (math.inf, "inf"), (-math.inf, "-inf")])
def test_numbers(value: float, plain: float | str) -> None:
    assert plain_number(value) == plain


def test_what_is_no_number() -> None:
    assert plain_number(math.nan) == "nan"
