"""When two values are the same: exactly, within what a dtype can be asked for, or not known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from firstfault.diagnose.equality import MOST_DIFFERENCES, compare
from firstfault.record import schema
from tests.unit.read.samples import tensor
from tests.unit.read.strategies import VALUES


def measured(**fields: Any) -> schema.Tensor:
    return tensor(4, **{"min": -1.0, "max": 1.0, "mean": 0.25, "nan_count": 0, "inf_count": 0} | fields)


@pytest.mark.parametrize(
    ("dtype", "change", "same"),
    [
        ("torch.float32", 1e-7, True),
        ("torch.float32", 1e-3, False),
        ("torch.bfloat16", 1e-2, True),
        ("torch.bfloat16", 5e-2, False),
        ("torch.float64", 1e-5, False),
        ("torch.float8_e5m2", 0.2, True),
        ("torch.int32", 1, False),
        ("torch.unheard_of", 1e-9, False),
    ],
)
def test_tolerance_is_by_dtype(dtype: str, change: float, same: bool) -> None:
    found = compare([("x", measured(dtype=dtype))], [("x", measured(dtype=dtype, max=1.0 + change))])
    assert found.same is same
    assert [difference.what for difference in found.differences] == ([] if same else ["max"])


def test_counts_of_nan_are_exact_whatever_the_dtype() -> None:
    [found] = compare([("x", measured())], [("x", measured(nan_count=1))]).differences
    assert (found.name, found.what, found.left, found.right) == ("x", "NaN", "0", "1")


def test_a_mean_near_zero_is_held_against_the_magnitude() -> None:
    left, right = (measured(dtype="torch.float32", min=-1e3, max=1e3, mean=mean) for mean in (1e-5, -2e-5))
    assert compare([("x", left)], [("x", right)]).same


@pytest.mark.parametrize("fields", [{"shape": (2, 2)}, {"dtype": "torch.float16"}])
def test_shape_and_dtype_are_known_without_statistics(fields: dict[str, Any]) -> None:
    found = compare(
        [("x", tensor(4))], [("x", tensor(**{"shape": (4,)} | fields) if "shape" not in fields else tensor(2, 2))]
    )
    assert [difference.what for difference in found.differences] == [next(iter(fields))]


def test_tensors_without_statistics_are_not_known_to_be_the_same() -> None:
    found = compare([("x", tensor(4))], [("x", tensor(4))])
    assert (found.differences, found.measured, found.same) == ([], False, False)
    assert compare([("x", tensor(0, 4))], [("x", tensor(0, 4))]).same


def test_addresses_and_layout_do_not_count() -> None:
    left = schema.Opaque("Pool", "<Pool at 0x7f01>")
    right = schema.Opaque("Pool", "<Pool at 0x7f99>")
    assert compare([("p", left)], [("p", right)]).same
    assert compare([("x", measured(ptr=64, device="cuda:0"))], [("x", measured(ptr=128, device="cuda:1"))]).same


@pytest.mark.parametrize(
    ("left", "right", "what"),
    [
        (1, 2, "value"), (1, 1.0, "type"), (True, 1, "type"), (None, 0, "type"), ("a", "b", "value"),
        (schema.Number("nan"), schema.Number("inf"), "value"),
        (schema.Sequence("list", 1, [1]), schema.Sequence("list", 2, [1, 2]), "value"),
        (schema.Sequence("list", 1, [1]), 1, "type"),
    ],
)  # fmt: skip
def test_plain_values_are_exact(left: schema.Value, right: schema.Value, what: str) -> None:
    assert compare([("x", left)], [("x", right)]).differences[0].what == what


def test_a_missing_argument_is_a_difference() -> None:
    assert compare([("x", 1), ("y", 2)], [("x", 1)]).differences[0].what == "structure"
    assert compare([], [("x", 1)]).differences[0].right == "x"


@given(VALUES)
def test_a_value_never_differs_from_itself(value: schema.Value) -> None:
    assert compare([("x", value)], [("x", value)]).differences == []


def test_differences_are_bounded() -> None:
    many = [(f"x{n}", n) for n in range(100)]
    assert len(compare(many, [(name, -1) for name, _ in many]).differences) == MOST_DIFFERENCES
