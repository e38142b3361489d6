"""Calls are held against what was declared of their operators."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.calls import Call
from firstfault.read.contracts import breaches
from firstfault.read.events import Event, Replayed
from firstfault.read.history import History
from firstfault.record import schema
from tests.unit.read.samples import call, returned


def tensor(**fields: Any) -> schema.Tensor:
    return schema.Tensor(**({"shape": (4, 8), "dtype": "torch.float32", "device": "cpu"} | fields))


def said(contract: schema.Contract, *args: schema.Value, out: schema.Value = None, **kwargs: schema.Value) -> list[str]:
    call = Call("main", schema.Call(1, 0, "op", args=[*args], kwargs=kwargs))
    call.out = out
    return [breach.text for breach in breaches([contract], call)]


def of(arg: str = "x", **fields: Any) -> schema.Contract:
    known: dict[str, Any] = {"op": "op", "arg": arg, "place": 0}
    return schema.Contract(**(known | fields))


@given(st.integers(-5, 40), st.integers(0, 40), st.integers(1, 30))
def test_indices_are_held_against_what_they_index(low: int, more: int, limit: int) -> None:
    ids = tensor(dtype="torch.int64", min=low, max=low + more)
    broken = low + more >= limit or low < -1
    assert bool(said(of(into="n", into_place=1), ids, limit)) is broken
    assert bool(said(of(into="n", into_place=1), ids, n=limit)) is broken
    assert bool(said(of(limit=limit), ids)) is broken
    assert bool(said(of(into="table", into_place=1), ids, tensor(shape=(limit, 2)))) is broken


def test_what_was_not_measured_breaks_nothing() -> None:
    assert said(of(limit=4), tensor(dtype="torch.int64")) == []
    assert said(of(finite=True), tensor()) == []


@pytest.mark.parametrize(
    ("contract", "given", "text"),
    [
        (of(finite=True), tensor(nan_count=2, inf_count=0, mean="nan"), "arg[0] holds 2 NaN and 0 Inf, and is to be finite"),
        (of(dtype="torch.int32"), tensor(), "arg[0] is torch.float32, and is to be torch.int32"),
        (of(contiguous=True), tensor(contiguous=False, stride=(1, 4)), "arg[0] is not contiguous, with strides (1, 4)"),
        (of(aligned=16), tensor(ptr=1028), "arg[0] begins 4 bytes after a multiple of 16"),
        (of(shape=("t", 16)), tensor(), "arg[0] has the shape (4, 8), and is to have (t, 16)"),
        (of(shape=("t",)), tensor(), "arg[0] has the shape (4, 8), and is to have (t)"),
        (of(shape=("t", "t")), tensor(), "arg[0] has the shape (4, 8), and is to have (t, t) with t 4"),
    ],
)  # fmt: skip
def test_each_kind_of_breach_is_said(contract: schema.Contract, given: schema.Tensor, text: str) -> None:
    assert said(contract, given) == [text]


def test_a_name_in_a_shape_is_the_number_that_is_given_under_it() -> None:
    declared = of(shape=("tokens", None))
    assert said(declared, tensor(), tokens=4) == []
    assert said(declared, tensor(), tokens=5) == [
        "arg[0] has the shape (4, 8), and is to have (tokens, any) with tokens 5"
    ]


def test_every_tensor_of_an_argument_or_result_is_meant() -> None:
    pair = schema.Sequence("tuple", 2, [tensor(), tensor(dtype="torch.int8")])
    assert said(of(dtype="torch.float32"), pair) == ["arg[0][1] is torch.int8, and is to be torch.float32"]
    assert said(of("return", dtype="torch.float32"), out=pair) == [
        "return[1] is torch.int8, and is to be torch.float32"
    ]
    assert said(of("return[0]", dtype="torch.float32"), out=pair) == []


def test_an_argument_that_is_not_there_breaks_nothing() -> None:
    assert said(of("y", place=3, finite=True), tensor(nan_count=1)) == []


def test_a_replay_of_a_captured_call_is_held_against_it_too() -> None:
    history = History()
    ids: dict[str, Any] = {"shape": (4,), "dtype": "torch.int32", "device": "cuda:0"}
    captured = call(1, "align", schema.Tensor(**ids))
    captured.graph, captured.device = 1, -1
    replayed = call(1, "align", schema.Tensor(**ids, min=0, max=99, mean=9.0))
    for record in (
        of("ids", limit=8, op="align"),
        captured,
        returned(1),
        Replayed(replayed, returned(1)),
    ):
        history.feed(Event("main", record))
    assert [found.n for found in history.processes["main"].noted()] == [1]
