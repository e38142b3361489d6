"""The tensors among values by the path to each, in the two ways that a path is written."""

from __future__ import annotations

from firstfault.read.tensors import key_parts, saved_inputs, saved_outputs, tensors, whole
from firstfault.record import schema
from tests.unit.read.samples import call, tensor

X, Y, Z = tensor(1), tensor(2), tensor(3)
OUT = schema.Mapping("Out", 1, ["x"], [X], fields=True)
DICT = schema.Mapping("dict", 3, ["'k'", "7", '"it\'s\\n"'], [Y, OUT, Z])
LIST = schema.Sequence("list", 9, [1, DICT, schema.Opaque("Any")])


def test_labels_are_those_of_the_text_log() -> None:
    assert list(tensors("arg[0]", LIST)) == [
        ("arg[0][1]['k']", Y), ("arg[0][1][7].x", X), ('arg[0][1]["it\'s\\n"]', Z),
    ]  # fmt: skip
    assert list(tensors("x", X)) == [("x", X)]
    assert list(tensors("x", None)) == []


def test_keys_are_those_of_a_dump() -> None:
    assert list(tensors("arg_0", LIST, key_parts)) == [
        ("arg_0_1_k", Y), ("arg_0_1_7_x", X), ("arg_0_1_it's\n", Z),
    ]  # fmt: skip
    assert list(saved_inputs(call(1, "op", X, LIST, kwargs={"out": OUT}))) == [
        ("arg_0", X), ("arg_1_1_k", Y), ("arg_1_1_7_x", X), ("arg_1_1_it's\n", Z), ("kwarg_out_x", X),
    ]  # fmt: skip
    assert list(saved_outputs(OUT)) == [("result_x", X)]


def test_values_cut_by_a_torn_record_end_with_the_shorter_list() -> None:
    assert list(tensors("x", schema.Mapping("dict", 2, ["'a'", "'b'"], [X]))) == [("x['a']", X)]


def test_a_level_below_which_nothing_is_described() -> None:
    assert list(saved_inputs(schema.Call(1, 0, "op"))) == []


def test_numbers_are_whole_however_a_log_prints_them() -> None:
    values: list[schema.Statistic | None] = [3, 3.0, 3.5, "nan", None, True]
    assert [whole(value) for value in values] == [3, 3, None, None, None, 1]
