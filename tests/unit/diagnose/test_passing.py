"""Runs of calls that pass a value on: what is taken for one, and what a trace shows of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose import passing
from firstfault.diagnose.lineage import upstream
from firstfault.read.process import Process
from firstfault.record import schema
from tests.unit.read.samples import call, returned, taken
from tests.unit.read.test_producers import at, valued

NAN: dict[str, Any] = {"mean": "nan", "nan_count": 2}


def shown(process: Process, n: int, *, whole: bool = False) -> list[tuple[int, str, int, list[int]]]:
    """Depth, argument, writer, and the calls in between, of each step upstream of a call."""
    return [
        (step.depth, step.label, step.link.writer.n if step.link else 0, [link.writer.n for link in step.through])
        for step in upstream(process, process.by_number[n], whole=whole)
    ]


VIEWS = ("aten.view.default", "aten.transpose.int", "aten.select.int")


def views(seen: schema.Tensor) -> Process:
    """A call that makes a tensor, views of views of it, and a call that is given the last."""
    records: list[schema.Record] = [call(1, "make"), returned(1, seen)]
    for n, name in enumerate(VIEWS, 2):
        records += [call(n, name, seen), returned(n, seen)]
    return taken(*records, call(99, "use", seen))


@pytest.mark.parametrize(("seen", "through"), [(at(1024), [4]), (valued(), [4, 3, 2])], ids=["by address", "by values"])
def test_views_are_told_in_the_line_of_what_they_are_of(seen: schema.Tensor, through: list[int]) -> None:
    process = views(seen)
    assert shown(process, 99) == [(0, "arg[0]", 1, through)]
    assert len(shown(process, 99, whole=True)) > 1


def copied(op: str, given: schema.Tensor, gave: schema.Tensor, *more: schema.Tensor) -> list[tuple[int, str, int, list[int]]]:  # fmt: skip
    """What is shown of a use of what a call gave for a tensor that another made."""
    return shown(
        taken(
            call(1, "make"), returned(1, given), call(2, op, given, *more), returned(2, gave), call(3, "use", gave),
        ),
        3,
    )  # fmt: skip


def test_copies_are_known_by_equal_values() -> None:
    assert copied("clone", valued(ptr=64), valued(ptr=2048)) == [(0, "arg[0]", 1, [2])]
    other = copied("scale", valued(ptr=64), valued(ptr=2048, max=2.0))
    assert other == [(0, "arg[0]", 2, []), (1, "arg[0]", 1, [])]
    assert copied("clone", at(64), at(2048)) == [(0, "arg[0]", 2, []), (1, "arg[0]", 1, [])]  # nothing was measured


def test_what_a_bad_value_goes_through_is_passed_over() -> None:
    bad = valued(ptr=64, **NAN)
    assert copied("add", bad, valued(ptr=2048, max=9.0, **NAN), valued(ptr=4096)) == [(0, "arg[0]", 1, [2])]
    spread = valued(ptr=2048, mean="nan", nan_count=8)
    assert copied("norm", bad, spread, valued(ptr=4096)) == [(0, "arg[0]", 2, []), (1, "arg[0]", 1, [])]


def test_of_what_is_not_finite_only_what_is_not_either_is_followed() -> None:
    bad, spread = valued(ptr=64, **NAN), valued(ptr=2048, mean="nan", nan_count=8)
    process = taken(
        call(1, "make"), returned(1, bad), call(2, "weights"), returned(2, valued(ptr=4096)),
        call(3, "mm", valued(ptr=4096), bad), returned(3, spread), call(4, "use", spread),
    )  # fmt: skip
    assert shown(process, 4) == [(0, "arg[0]", 3, []), (1, "arg[1]", 1, [])]
    assert shown(process, 4, whole=True) == [(0, "arg[0]", 3, []), (1, "arg[0]", 2, []), (1, "arg[1]", 1, [])]


def test_what_several_wrote_is_not_passed_over() -> None:
    process = taken(
        call(1, "low"), returned(1, at(0x1000, 4)), call(2, "high"), returned(2, at(0x1000 + 16, 4, storage=0x1000)),
        call(3, "use", at(0x1000, 8)),
    )  # fmt: skip
    assert {writer for _, _, writer, _ in shown(process, 3)} <= {1, 2}
    assert shown(process, 3) == shown(process, 3, whole=True)


@pytest.mark.parametrize("name", sorted(passing.VIEWS))
def test_views_are_operators_of_pytorch(name: str) -> None:
    import torch

    assert hasattr(torch.ops.aten, name)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["view", "aten.t.default", "op"])), max_size=30))
def test_a_walk_ends_and_shows_no_more_than_the_whole(made: list[tuple[int, str]]) -> None:
    records: list[schema.Record] = []
    for n, (place, op) in enumerate(made, 1):
        tensor = at(1024 * (1 + place))
        records += [call(n, op, tensor), returned(n, at(1024 * (1 + (place * 3 + n) % 6)))]
    process = taken(*records, call(99, "use", at(1024), at(2048)))
    assert len(shown(process, 99)) <= len(shown(process, 99, whole=True))
