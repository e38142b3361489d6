"""Comparing two records: which call is named, and when nothing can be said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from firstfault.diagnose.compared import Comparison, Verdict
from firstfault.diagnose.comparison import Record, comparison, conclude
from firstfault.read.events import Event
from firstfault.record import schema
from tests.unit.read.samples import call, header, raised, returned, tensor


def values(high: float = 1.0, n: int = 1, **fields: Any) -> schema.Tensor:
    statistics = {"dtype": "torch.float32", "min": 0.0, "max": high, "mean": 0.5, "nan_count": 0, "inf_count": 0}
    return tensor(4, **statistics | {"ptr": n * 4096, "storage": n * 4096} | fields)


def compared(one: Iterable[schema.Record], other: Iterable[schema.Record], **sessions: dict[str, object]) -> Comparison:
    sides = [
        Record(name, [Event(name, record) for record in records], lambda call: None, sessions.get(name, {}))
        for name, records in (("left", one), ("right", other))
    ]
    return conclude(comparison(sides[0], sides[1]))


def chain(*results: schema.Value, first: schema.Value | None = None) -> list[schema.Record]:
    """Calls, each given what the one before it gave."""
    records: list[schema.Record] = [header(5)]
    given: schema.Value = first or values()
    for n, result in enumerate(results, 1):
        records += [call(n, f"op{n}", given), returned(n, result)]
        given = result
    return records


def test_two_runs_of_the_same_are_the_same() -> None:
    found = compared(chain(values(2.0, 2), values(3.0, 3)), chain(values(2.0, 12), values(3.0, 13)))
    assert (found.verdict, found.paired, found.measured, found.first, found.given) == (Verdict.SAME, 2, 2, None, None)
    assert found.conclusion == "All 2 calls were given the same and gave the same."


def test_the_first_that_gave_something_else_is_named_and_not_what_follows_from_it() -> None:
    found = compared(
        chain(values(2.0, 2), values(3.0, 3), values(4.0, 4)), chain(values(2.0, 2), values(9.0, 3), values(8.0, 4))
    )
    assert found.verdict is Verdict.DIFFERS
    assert found.first is not None
    assert found.given is not None
    assert (found.first.op, found.first.left, found.first.right, found.gave) == ("op2", 2, 2, 1)
    assert (found.given.op, found.given.writers) == ("op3", {"arg[0]": "op2 (call 2)"})
    assert found.conclusion == (
        "op2 (call 2 | call 2) is the first that was given the same and gave something else: return: max 3.0 | 9.0."
    )


def test_of_nested_calls_the_inner_one_is_named() -> None:
    def nested(high: float) -> list[schema.Record]:
        inner: list[schema.Record] = [call(2, "inner", values(), parent=1), returned(2, values(high, 2))]
        return [header(5), call(1, "outer", values()), *inner, returned(1, values(high, 2))]

    found = compared(nested(1.0), nested(7.0))
    assert found.first is not None
    assert (found.first.op, found.gave) == ("inner", 2)


def test_what_came_from_outside_is_said_to() -> None:
    found = compared(chain(values(2.0, 2)), chain(values(3.0, 2), first=values(5.0)))
    assert found.first is None
    assert found.conclusion == (
        "op1 (call 1 | call 1) is the first that was given something else: arg[0]: max 1.0 | 5.0; "
        "no recorded call wrote it."
    )


def test_an_exception_on_one_side_is_a_difference() -> None:
    found = compared(
        [header(5), call(1, "op", values()), raised(1)], [header(5), call(1, "op", values()), returned(1, 3)]
    )
    assert found.first is not None
    assert found.first.differences[0].what == "end"
    assert "raised ValueError | returned" in found.conclusion


def test_a_call_in_flight_is_compared_with_the_one_that_came_back() -> None:
    found = compared(
        [header(5), call(1, "op", values())], [header(5), call(1, "op", values()), returned(1, values(2.0))]
    )
    assert "the call: end in flight | returned" in found.conclusion


def test_calls_on_one_side_only() -> None:
    found = compared(chain(values(1.0, 1), values(1.0, 1)), chain(values(1.0, 1)))
    assert (found.verdict, found.only_left, found.only_right) == (Verdict.DIFFERS, 1, 0)
    assert [(only.side, only.call, only.op) for only in found.only] == [("left", 2, "op2")]


@pytest.mark.parametrize("level", [1, 3])
def test_without_values_nothing_is_called_the_same(level: int) -> None:
    ended = [returned(1, tensor(4))] if level == 3 else []
    args = (tensor(4),) if level == 3 else ()
    side: list[schema.Record] = [header(level), call(1, "op", *args), *ended]
    found = compared(side, side)
    assert found.verdict is Verdict.CANNOT_TELL
    assert "record both at level 5 or 10" in found.conclusion


def test_nothing_in_common_cannot_be_compared() -> None:
    found = compared([header(5)], [header(5)])
    assert found.verdict is Verdict.CANNOT_TELL
    assert found.conclusion.startswith("No call could be compared")


def test_what_could_not_be_read_leaves_the_answer_open() -> None:
    found = compared(chain(values()), chain(values()))
    found.problems = ["torn"]
    assert conclude(found).verdict is Verdict.CANNOT_TELL


def test_the_environment() -> None:
    found = compared(
        chain(values()),
        chain(values()),
        left={"versions": {"torch": "2.13"}, "environment": {"A": "1", "B": "2"}, "devices": ["H200"], "pid": 1},
        right={"versions": {"torch": "2.14"}, "environment": {"A": "1"}, "devices": ["H200", "H200"], "pid": 2},
    )
    assert [(change.name, change.left, change.right) for change in found.environment] == [
        ("devices", "H200", "H200 H200"), ("environment.B", "2", ""), ("versions.torch", "2.13", "2.14"),
    ]  # fmt: skip
    assert found.verdict is Verdict.SAME


def test_arguments_outlive_what_a_history_keeps() -> None:
    def long(high: float) -> Iterable[schema.Record]:
        yield header(5)
        for n in range(1, 1500):
            last = high if n == 1499 else 1.0
            yield call(n, "op", *([values()] * 80))
            yield returned(n, values(last))

    late = compared(long(1.0), long(2.0))
    assert late.first is not None
    assert (late.first.left, late.measured) == (1499, 1499)


# --- what it comes to


def timed(durations: Iterable[int], op: str = "step") -> list[schema.Record]:
    records: list[schema.Record] = [header(5)]
    for n, took in enumerate(durations, 1):
        begun = call(n, op, values())
        records += [begun, schema.Return(n, begun.t + took, 7, described=True, out=values(2.0, 2))]
    return records


def test_the_call_that_gave_something_else_is_the_culprit() -> None:
    told = compared(chain(values(2.0, 2)), chain(values(2.5, 2))).diagnosis
    assert told is not None
    assert (told.kind.value, told.confidence.value, told.culprit_op, told.origin_op) == (
        "precision",
        "high",
        "op1",
        "op1",
    )
    told = compared(chain(values(2.0, 2)), chain(values(2.0, 2, nan_count=3))).diagnosis
    assert told is not None
    assert told.kind.value == "NaN, infinity or garbage"


def test_another_layout_of_the_same_values_is_what_was_misread() -> None:
    def sides(stride: tuple[int, ...]) -> list[schema.Record]:
        part = values(1.0, 3, shape=(2, 2), stride=stride, contiguous=stride == (2, 1))
        given = values(1.0, 1, shape=(2, 2))
        return [
            header(5), call(1, "slice", given), returned(1, part),
            call(2, "rotate", part), returned(2, values(3.0 if stride == (2, 1) else 4.0, 9)),
        ]  # fmt: skip

    found = compared(sides((2, 1)), sides((4, 1)))
    assert found.diagnosis is not None
    assert (found.diagnosis.culprit_op, found.diagnosis.origin_op) == ("rotate", "slice")
    assert found.diagnosis.kind.value == "shape, dtype, stride or device mismatch"
    assert "though with another stride of arg[0]: (2, 1) | (4, 1)" in found.conclusion
    assert found.diagnosis.command == "firstfault trace right --call 2 --process right"


def test_a_variable_that_rounding_depends_on_is_what_to_look_at() -> None:
    session: dict[str, object] = {"environment": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}}
    found = compared(chain(values(2.0, 2)), chain(values(2.001, 2)), right=session)
    assert found.diagnosis is not None
    assert (found.diagnosis.culprit_op, found.diagnosis.origin_op) == ("op1", "")
    assert found.diagnosis.command == "env -u TORCH_ALLOW_TF32_CUBLAS_OVERRIDE firstfault run --level 5 -- COMMAND"
    without = compared(chain(values(2.0, 2)), chain(values(2.001, 2)))
    assert without.diagnosis is not None
    assert "as rounding to TF32 (2⁻¹¹) makes them" in without.diagnosis.text


def test_what_was_written_in_place_is_its_writers() -> None:
    def sides(high: float) -> list[schema.Record]:
        first: list[schema.Record] = [call(1, "fill", values(0.0)), returned(1, None, mutated=["arg[0]"])]
        return [header(5), *first, call(2, "norm", values(high, version=1)), returned(2, values(high, 2))]

    told = compared(sides(1.0), sides(2.0)).diagnosis
    assert told is not None
    assert (told.culprit_op, told.origin_op, told.confidence.value) == ("fill", "fill", "medium")


def test_other_inputs_from_outside_are_nobodys_fault() -> None:
    assert compared(chain(values(2.0, 2)), chain(values(3.0, 2), first=values(5.0))).diagnosis is None


def test_what_became_slower_is_told_where_the_values_are_the_same() -> None:
    found = compared(timed([50_000] * 20), timed([900_000] * 20))
    assert found.verdict is Verdict.SAME
    assert found.diagnosis is not None
    assert (found.diagnosis.kind.value, found.diagnosis.culprit_op) == ("latency", "step")
    assert found.conclusion.endswith(
        "step takes 18 times as long on the right (0.05 → 0.9 ms a call, the median of 18)."
    )
    assert compared(timed([50_000] * 20), timed([60_000] * 20)).slower == []
    assert compared(timed([50_000] * 20), [header(3), *timed([900_000] * 20)[1:]]).slower == []  # another level


def test_an_argument_that_made_no_difference() -> None:
    def sides(window: int) -> list[schema.Record]:
        return [header(5), call(1, "attention", values(), window), returned(1, values(2.0, 2))]

    found = compared(sides(8), sides(16))
    assert [(each.op, each.name, each.left, each.right) for each in found.unused] == [
        ("attention", "arg[1]", "8", "16")
    ]
    assert found.diagnosis is not None
    assert (found.diagnosis.kind.value, found.diagnosis.culprit_op) == ("precision", "attention")


def test_ranks_that_reduce_differently_gave_something_else() -> None:
    def sides(rank: int, high: float) -> list[schema.Record]:
        place = schema.Collective("0", rank, 2, 1)
        begun = call(1, "torch.distributed.all_reduce", values(float(rank + 2)), collective=place)
        return [header(5, rank=str(rank)), begun, returned(1, values(high, 2))]

    found = compared(sides(0, 5.0), sides(1, 6.0))
    assert found.first is not None
    assert found.first.op == "torch.distributed.all_reduce"
    assert compared(sides(0, 5.0), sides(1, 5.0)).first is None
