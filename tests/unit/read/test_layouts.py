"""Short calls, filled from the description that they refer to; also such as nobody of ours has written."""

from __future__ import annotations

from typing import Any

import pytest

from firstfault.read.events import Problems
from firstfault.read.formats.layouts import UNKNOWN_OP, Layouts
from firstfault.record import codec, schema

DESCRIBED = schema.Tensor((2, 3), "torch.float32", "cuda:0", stride=(3, 1), nbytes=24, token=5, statistics="[pending]")
KINDS = ["storages", "ptrs"]


def filled(*records: schema.Call | schema.Return) -> list[Any]:
    problems = Problems()
    through = [codec.decode(codec.encode(record)) for record in records]
    return [*Layouts(problems).filled(through)]


def described() -> schema.Call:
    return schema.Call(1, 1, "op", args=[DESCRIBED, 2], kwargs={}, layout=7)


def short(kind: str, **told: Any) -> schema.Call:
    call = schema.Call(2, 2, layout=7, **told)
    setattr(call, kind, [4096])
    return call


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_are_told(kind: str) -> None:
    _, call = filled(described(), short(kind, shapes=[(0, (4, 3))]))
    tensor = call.args[0]
    assert (tensor.shape, tensor.stride, tensor.nbytes, tensor.contiguous) == ((4, 3), (3, 1), 48, True)
    assert tensor.ptr == 4096


@pytest.mark.parametrize("kind", KINDS)
def test_strides_that_are_told(kind: str) -> None:
    _, call = filled(described(), short(kind, strides=[(0, (1, 2))]))
    assert (call.args[0].shape, call.args[0].stride, call.args[0].contiguous) == ((2, 3), (1, 2), False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2**62,) * 1000, (4,), (), (-1, 3)])
def test_sizes_that_the_tensor_cannot_have_are_left_out(kind: str, shape: tuple[int, ...]) -> None:
    _, call = filled(described(), short(kind, shapes=[(0, shape)]))
    assert call.args[0].shape == (2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_beyond_a_word(kind: str) -> None:
    _, call = filled(described(), short(kind, shapes=[(0, (2**62, 2**62))]))
    assert call.args[0].nbytes == 2**63 - 1
    codec.encode(call)


def test_each_call_has_tokens_of_its_own() -> None:
    first, second = short("storages", token=40), short("storages", token=41)
    calls = filled(described(), first, second)
    assert [call.args[0].token for call in calls] == [5, 40, 41]
    assert [call.token for call in calls] == [0, 0, 0]  # of a replay it would be


def test_a_call_whose_description_is_lost_is_no_replay() -> None:
    (call,) = filled(short("storages", token=40))
    assert (call.op, call.token) == (UNKNOWN_OP, 0)


def test_statistics_of_the_described_call_are_its_own() -> None:
    records = [described(), short("storages", token=40)]
    found = Layouts(Problems()).filled(records)
    described_call: Any = next(iter(found))
    described_call.args[0].min, described_call.args[0].token = 3.0, 0  # as the statistics page has them put there
    call: Any = next(iter(found))
    assert (call.args[0].min, call.args[0].token) == (None, 40)


def test_a_result_takes_after_the_call_that_gave_one_like_it() -> None:
    like = schema.Return(1, 1, described=True, out=DESCRIBED, layout=7)
    other = schema.Return(2, 2, layout=7, storages=[64], shapes=[(0, (1, 3))], token=9)
    _, found = filled(like, other)
    assert (found.out.shape, found.out.token, found.token) == ((1, 3), 9, 0)
