"""Calls held against references: registered ones, named ones, and what was called itself in more digits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from firstfault import peers
from firstfault.capture import boundary
from firstfault.replay import references
from firstfault.replay.verdict import Replayed, Verdict
from tests.conftest import Record
from tests.unit.replay import samples
from tests.unit.replay.making import HERE, dumped, one


def named(record: Record, op: str, func: Any, *args: Any) -> Path:
    found = record(10)
    boundary.wrap(func, op)(*args)
    return found.dumps()[0]


def against(folder: Path, reference: str = "", **chosen: str) -> Replayed:
    return one(folder, against="reference", reference=reference, **chosen)


def test_a_registered_reference_clears_a_right_kernel_and_not_a_wrong_one(record: Record) -> None:
    x = torch.randn(16, 64).bfloat16()
    right = against(named(record, "sgl_kernel.silu_and_mul", samples.silu_and_mul, x))
    assert (right.verdict, right.against, right.independent) == (Verdict.MATCH, "the reference for silu_and_mul", True)
    [error] = right.errors
    assert isinstance(error.largest, float)
    assert 0 < error.largest < 0.1
    wrong = against(named(record, "sgl_kernel.silu_and_mul", samples.wrong_silu_and_mul, x))
    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.differences[0].differing > 100


def test_what_is_written_in_place_is_held_against_it(record: Record) -> None:
    args = torch.randn(4, 32).bfloat16(), torch.randn(4, 32).bfloat16(), torch.ones(32).bfloat16()
    found = against(named(record, "sgl_kernel.fused_add_rmsnorm", samples.fused_add_rmsnorm, *args))
    assert (found.verdict, sorted(found.compared)) == (Verdict.MATCH, ["arg[0]", "arg[1]"])


def test_what_was_called_itself_in_more_digits(record: Record) -> None:
    found = against(dumped(record, samples.careless_sum, torch.rand(4096, 8).to(torch.bfloat16)))
    assert found.verdict is Verdict.MISMATCH
    assert not found.independent
    assert found.against == "pkg.careless_sum in float64 on the CPU"
    fine = against(dumped(record, samples.double, torch.rand(8)))
    assert (fine.verdict, fine.independent) == (Verdict.MATCH, False)


def test_pytorchs_own_operators_count_as_another_implementation(record: Record) -> None:
    found = against(named(record, "aten.mm.default", torch.ops.aten.mm.default, torch.randn(8, 8), torch.randn(8, 8)))
    assert (found.verdict, found.independent) == (Verdict.MATCH, True)


def test_a_named_reference(record: Record) -> None:
    folder = dumped(record, samples.softmax, torch.full((2, 4), 100.0))
    assert against(folder, f"{HERE}:right_softmax").verdict is Verdict.MISMATCH
    assert against(folder, f"{HERE}:right_softmax", function=f"{HERE}:right_softmax").verdict is Verdict.MATCH
    assert against(folder, f"{HERE}:gone").verdict is Verdict.NOT_RUN
    assert against(folder, f"{HERE}:refuse").verdict is Verdict.NOT_RUN  # raises


def test_a_crash_is_one_against_a_reference_too(record: Record) -> None:
    assert against(dumped(record, samples.refuse, torch.ones(1)), f"{HERE}:double").verdict is Verdict.CRASHED


def test_others_register_theirs_by_entry_points(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(load=lambda: samples.right_softmax)
    monkeypatch.setattr(peers, "entry_points", lambda group: {"soft*": point} if group == references.GROUP else {})
    found = against(named(record, "pkg.softmax", samples.softmax, torch.full((2, 4), 100.0)))
    assert (found.verdict, found.against) == (Verdict.MISMATCH, "the reference for soft*")


@pytest.mark.parametrize(
    "op", ["sgl_kernel.rmsnorm", "flashinfer.norm.rmsnorm", "torch.ops.sgl_kernel.rmsnorm.default"]
)
def test_an_operator_is_known_by_its_last_name(op: str) -> None:
    known = references.of(op)
    assert known is not None
    assert known[1] is references.rmsnorm


def test_references_are_right() -> None:
    x, weight = torch.randn(3, 8).double(), torch.rand(8).double()
    expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)
    torch.testing.assert_close(references.rmsnorm(x, weight), expected)
    torch.testing.assert_close(references.gemma_rmsnorm(x, weight - 1), expected)
    out = torch.empty_like(x)
    assert references.rmsnorm(x, weight, 1e-6, out) is out
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(references.REFERENCES["silu_and_mul"](x), samples.silu_and_mul(x))


def test_what_draws_random_numbers_has_no_measure(record: Record) -> None:
    """With more digits it draws others: that is no mismatch."""
    for op, func in (("aten.bernoulli.default", torch.ops.aten.bernoulli.default), ("pkg.noisy", samples.noise)):
        found = against(named(record, op, func, torch.rand(8)))
        assert found.verdict is Verdict.NOT_RUN
        assert "draws random numbers" in found.text
