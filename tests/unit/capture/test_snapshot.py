from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from firstfault.capture import archive, describe, snapshot
from tests.unit.recording import same


def plan(**values: torch.Tensor) -> snapshot.Plan:
    walk = describe.Walk(dump=True)
    describe.describe_call((), values, walk)
    return snapshot.plan(zip(values, walk.found, strict=True))


def copies(held: snapshot.Snapshot) -> dict[str, torch.Tensor]:
    return archive.tensors(held.views, held.storages) | held.others


def poke(tensor: torch.Tensor, index: int, value: float) -> None:
    """Write behind torch's back, as a kernel does that is handed a pointer."""
    ctypes.c_float.from_address(tensor.data_ptr() + 4 * index).value = value


def test_a_copy_is_not_what_it_was_copied_from() -> None:
    x = torch.ones(3)
    held = snapshot.take(plan(x=x))
    x.zero_()
    assert copies(held)["x"].tolist() == [1.0, 1.0, 1.0]


def test_overlapping_views_stay_views_of_one_another() -> None:
    base = torch.arange(12.0).view(3, 4)
    held = copies(snapshot.take(plan(row=base[1], all=base, column=base[:, 2])))
    held["all"][1, 2] = -7
    assert held["row"][2] == held["column"][1] == -7


def test_views_that_do_not_overlap_are_copied_apart() -> None:
    cache = torch.zeros(2**20)
    planned = plan(k=cache[:4], v=cache[-4:])
    assert planned.nbytes < 100
    assert len(planned.ranges) == 2


def test_a_slice_of_a_large_storage_costs_the_slice() -> None:
    planned = plan(x=torch.zeros(2**20)[5:9])
    assert planned.nbytes < 40
    assert len(snapshot.take(planned).storages[0]) == planned.nbytes


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[0].expand(1000, 6),
        lambda t: t.as_strided((4, 3), (1, 2), 3),
        lambda t: t.as_strided((1, 6), (999, 1), 6),
        lambda t: t[2:2],
        lambda t: t[1, 1],
        lambda t: t.diagonal(),
    ],
)
def test_strides_and_offsets_survive(view: Any) -> None:
    value = view(torch.arange(24.0).view(4, 6))
    back = copies(snapshot.take(plan(x=value)))["x"]
    assert same(back, value)


def test_an_empty_view_anywhere() -> None:
    far = torch.ones(4).as_strided((0, 3), (3, 1), 10**9)
    planned = plan(far=far, x=torch.ones(2))
    assert planned.unreachable == {}
    assert copies(snapshot.take(planned))["far"].shape == (0, 3)


def test_two_storages_over_one_memory() -> None:
    memory = torch.arange(8.0).numpy()
    short, whole = torch.from_numpy(memory[:2]), torch.from_numpy(memory)
    for held in (copies(snapshot.take(plan(a=short, b=whole))), copies(snapshot.take(plan(b=whole, a=short)))):
        assert held["a"].tolist() == [0.0, 1.0]
        assert held["b"].tolist() == list(range(8))
        held["b"][0] = 9
        assert held["a"][0] == 9


def test_different_dtypes_over_one_storage() -> None:
    floats = torch.arange(4.0)
    held = copies(snapshot.take(plan(f=floats, i=floats.view(torch.int32), b=floats.view(torch.uint8)[5:7])))
    held["i"].zero_()
    assert held["f"].tolist() == [0.0] * 4
    assert held["b"].tolist() == [0, 0]


@pytest.mark.parametrize("kept", [0, 100])
def test_a_shrunk_storage_keeps_only_its_own_tensor_out(kept: int) -> None:
    shrunk = torch.ones(1000)
    shrunk.untyped_storage().resize_(kept)
    planned = plan(gone=shrunk, x=torch.ones(2))
    assert planned.unreachable == {"gone": "its storage was resized"}
    assert list(copies(snapshot.take(planned))) == ["x"]


def test_what_cannot_be_copied_is_named() -> None:
    assert plan(m=torch.ones(2, device="meta")).unreachable == {"m": "meta tensor has no values"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (torch.tensor([1 + 2j]).conj(), 8),
        (torch.tensor([1 + 2j]).conj().imag, 4),
        (torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8), 2),
        (torch._efficientzerotensor((3,)), 12),
        (torch.eye(3).to_sparse(), 3 * 4 + 2 * 3 * 8),
        (torch.eye(3).to_sparse_csr(), 3 * 4 + 4 * 8 + 3 * 8),
        (torch.eye(3).to_sparse_csc(), 3 * 4 + 4 * 8 + 3 * 8),
        (torch.eye(4).to_sparse_bsr((2, 2)), 8 * 4 + 3 * 8 + 2 * 8),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 20),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), 20),
    ],
    ids=["conj", "neg", "quantized", "zero", "coo", "csr", "csc", "bsr", "nested", "jagged"],
)
def test_those_that_are_copied_by_themselves(value: torch.Tensor, nbytes: int) -> None:
    planned = plan(x=value)
    assert (planned.ranges, planned.nbytes, planned.unreachable) == ([], nbytes, {})
    back = snapshot.take(planned).others["x"]
    assert (back.layout, back.dtype, back.is_conj(), back.is_neg()) == (value.layout, value.dtype, False, False)
    assert dense(back) == dense(value)


def dense(tensor: torch.Tensor) -> list[Any]:
    """The values of any of them."""
    if tensor.is_nested:
        return [part.tolist() for part in tensor.unbind()]
    whole: list[Any] = (tensor.dequantize() if tensor.is_quantized else tensor.to_dense()).clone().tolist()
    return whole


# --- what a call changed


def changed_by(change: Any, **values: torch.Tensor) -> list[str]:
    held = snapshot.take(plan(**values))
    change()
    keys, unknown = held.changed()
    assert unknown == {}
    return sorted(keys)


def test_a_write_through_a_pointer_is_seen() -> None:
    x, y = torch.zeros(8), torch.zeros(8)
    assert changed_by(lambda: poke(x, 3, 1.0), x=x, y=y) == ["x"]
    assert x._version == 0


def test_nan_stays_nan_without_being_a_change() -> None:
    assert changed_by(lambda: None, x=torch.full((3,), float("nan"))) == []


def test_minus_zero_is_a_change() -> None:
    x = torch.zeros(3)
    assert changed_by(lambda: poke(x, 0, -0.0), x=x) == ["x"]


def test_only_the_views_that_were_written_to() -> None:
    base = torch.zeros(4, 4)
    views = {"all": base, "row": base[1], "column": base[:, 2], "other": base[3]}
    assert changed_by(lambda: poke(base, 4 * 1 + 0, 1.0), **views) == ["all", "row"]


def test_what_lies_between_the_elements_is_nobodys() -> None:
    base = torch.zeros(4, 4)
    assert changed_by(lambda: poke(base, 1, 1.0), first_column=base[:, 0]) == []


def test_a_change_under_an_expanded_view_costs_what_it_holds() -> None:
    x = torch.zeros(4)
    wide = x.expand(10**9, 4)
    assert changed_by(lambda: poke(x, 1, 1.0), x=x, wide=wide, rest=x[2:]) == ["wide", "x"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bits16, torch.complex128, torch.float8_e5m2], ids=str)
def test_changes_in_any_dtype(dtype: torch.dtype) -> None:
    raw = torch.zeros(48, dtype=torch.uint8)
    first = torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 0, (1,), (1,))
    odd = raw[:45]  # not a whole number of elements
    assert changed_by(lambda: raw.__setitem__(44, 1), first=first, odd=odd) == ["odd"]
    assert changed_by(lambda: raw.__setitem__(0, 1), first=first, odd=odd) == ["first", "odd"]


def test_those_copied_by_themselves_by_their_counter() -> None:
    conj, sparse = torch.tensor([1 + 2j]).conj(), torch.eye(3).to_sparse()
    assert changed_by(lambda: conj.mul_(2), conj=conj, sparse=sparse) == ["conj"]
    assert changed_by(lambda: sparse.mul_(2), conj=conj, sparse=sparse) == ["sparse"]


def test_a_storage_that_the_call_shrank_leaves_it_unknown() -> None:
    x, y = torch.zeros(8), torch.zeros(8)
    held = snapshot.take(plan(x=x, y=y))
    x.untyped_storage().resize_(0)
    y.add_(1)
    assert held.changed() == (["y"], {"x": "its storage was resized"})
