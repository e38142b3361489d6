"""Contracts are written for the operators that they hold for, and their tensors are read from level 3 on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from firstfault.capture import contracts
from firstfault.capture.boundary import wrap
from firstfault.capture.contracts import contract
from firstfault.capture.targets import aten
from firstfault.record import codec, layout, schema
from tests.conftest import Record
from tests.unit.recording import Recording


@pytest.fixture(autouse=True)
def none_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "_declared", [])


def align(topk_ids: Any, num_experts: int, *, scale: Any = None) -> Any:
    return topk_ids + 1


def written(recording: Recording) -> list[schema.Contract]:
    files = recording.folder.glob(f"*/{layout.CONTRACTS}")
    lines = (line for file in files for line in file.read_bytes().splitlines())
    return [record for line in lines if isinstance(record := codec.decode(line), schema.Contract)]


def given(recording: Recording) -> list[schema.Value]:
    (record,) = recording.of(schema.Call)
    return [*(record.args or ()), *(record.kwargs or {}).values()]


def test_a_contract_is_written_once_for_each_operator_that_is_called(record: Record) -> None:
    recording = record(3)
    contract("*.align", "topk_ids", index_into="num_experts")
    boundaries = [wrap(align, name) for name in ("a.align", "b.align", "c.other")]
    for boundary in boundaries * 2:
        boundary(torch.zeros(3, dtype=torch.int32), 4)
    assert [(found.op, found.arg, found.place, found.into, found.into_place) for found in written(recording)] == [
        ("a.align", "topk_ids", 0, "num_experts", 1),
        ("b.align", "topk_ids", 0, "num_experts", 1),
    ]


def test_a_contract_that_is_declared_late_holds_from_then_on(record: Record) -> None:
    recording = record(3)
    boundary = wrap(align, "align")
    boundary(torch.zeros(3), 4)
    assert written(recording) == []
    contract("align", 0, finite=True)
    boundary(torch.zeros(3), 4)
    assert [found.place for found in written(recording)] == [0]


@pytest.mark.parametrize("ring_bytes", [0, 2**20])
def test_only_what_a_contract_is_about_is_read_at_level_3(record: Record, ring_bytes: int) -> None:
    recording = record(3, text_dest=None, ring_bytes=ring_bytes)
    contract("align", "topk_ids", index_into="num_experts")
    wrap(align, "align")(torch.tensor([0, 7]), 4, scale=torch.ones(2))
    ids, _, scale = given(recording)
    assert isinstance(ids, schema.Tensor)
    assert isinstance(scale, schema.Tensor)
    assert (ids.min, ids.max) == (0, 7)
    assert scale.min is None
    (result,) = recording.of(schema.Return)
    assert isinstance(result.out, schema.Tensor)
    assert result.out.min is None


def test_a_result_is_read_where_a_contract_is_about_it(record: Record) -> None:
    recording = record(3, text_dest=None)
    contract("align", "return", finite=True)
    wrap(align, "align")(torch.tensor([torch.nan, 1.0]), 4)
    (result,) = recording.of(schema.Return)
    assert isinstance(result.out, schema.Tensor)
    assert result.out.nan_count == 1


def test_a_contract_about_the_layout_reads_nothing(record: Record) -> None:
    recording = record(3, text_dest=None)
    contract("align", "topk_ids", dtype=torch.int32, contiguous=True, aligned=16, shape=("tokens", None))
    wrap(align, "align")(torch.zeros(3, 2), 4)
    ids = given(recording)[0]
    assert isinstance(ids, schema.Tensor)
    assert ids.min is None
    (found,) = written(recording)
    assert (found.dtype, found.shape) == ("torch.int32", ("tokens", None))


def test_without_a_recording_nothing_is_done(record: Record) -> None:
    record(0)
    contract("align", "topk_ids", finite=True)
    assert wrap(align, "align")(torch.zeros(1), 4).tolist() == [1]


def test_operators_know_their_parameters_by_their_schema() -> None:
    from firstfault.capture.custom_op import parameters

    assert parameters([torch.ops.aten.embedding.default])[:2] == ("weight", "indices")


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: contract("op", "x"), "declares nothing"),
        (lambda: contract("op", "x", aligned=-1), "negative"),
        (lambda: contract("op", "x", shape=(1.5,)), "no integer"),  # type: ignore[arg-type]
        (lambda: contract("op", "x", index_into=-3), "negative"),
    ],
)
def test_what_cannot_be_held_against_a_call_is_refused(declare: Callable[[], None], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        declare()


def test_operators_of_pytorch_know_their_arguments_by_name(record: Record) -> None:
    recording = record(3, text_dest=None)
    contract("aten.embedding*", "indices", index_into="weight")
    aten.install(torch)
    try:
        torch.nn.functional.embedding(torch.tensor([2, 3]), torch.ones(4, 2))
    finally:
        aten.uninstall()
    assert [(found.op, found.place, found.into_place) for found in written(recording)] == [
        ("aten.embedding.default", 1, 0)
    ]
