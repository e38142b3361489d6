"""Saved tensors, element by element: held against what torch itself finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstfault.diagnose.equality import tolerance
from firstfault.errors import UnreadableInput
from firstfault.read import elements
from firstfault.read.formats import saved_tensor

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def saved(folder: Path, name: str, **tensors: torch.Tensor) -> Path:
    torch.save(tensors, folder / name)
    return folder / name


def compared(folder: Path, left: torch.Tensor, right: torch.Tensor) -> elements.Elements:
    files = saved(folder, "left.pt", x=left), saved(folder, "right.pt", x=right)
    return elements.compare(*files, tolerance).elements["x"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(0, 2**31), st.integers(0, 5), st.booleans())
def test_it_finds_what_torch_finds(
    tmp_path: Path, dtype: torch.dtype, seed: int, changed: int, transposed: bool
) -> None:
    torch.manual_seed(seed)
    left = torch.randint(0, 2, (5, 7)).to(dtype) if not dtype.is_floating_point else torch.randn(5, 7).to(dtype)
    right = left.clone()
    at = torch.randperm(35)[:changed]
    flat = right.view(-1)
    flat[at] = (~flat[at] if dtype is torch.bool else flat[at] + 1).to(dtype)
    if transposed:
        left = left.T.contiguous().T  # the same, laid out otherwise
    found = compared(tmp_path, left, right)
    assert (found.size, found.differ) == (35, changed)
    if changed:
        first = int(at.min())
        assert found.first == (first // 7, first % 7)
        distance = (left.double() - right.double()).abs().max()
        assert found.apart == pytest.approx(float(distance))


def test_two_nan_are_equal_and_one_is_not(tmp_path: Path) -> None:
    nan = float("nan")
    assert compared(tmp_path, torch.tensor([nan, 1.0]), torch.tensor([nan, 1.0])).differ == 0
    found = compared(tmp_path, torch.tensor([1.0, 2.0]), torch.tensor([1.0, nan]))
    assert (found.differ, found.first, found.left, found.right, found.apart) == (1, (1,), "2.0", "nan", 0.0)
    assert compared(tmp_path, torch.tensor([float("inf")]), torch.tensor([-float("inf")])).differ == 1


def test_what_rounds_differently_is_the_same(tmp_path: Path) -> None:
    left = torch.linspace(1, 2, 64).bfloat16()
    found = compared(tmp_path, left, (left.float() * 1.004).bfloat16())
    assert found.differ == 0
    assert found.relative > 0


def test_pieces_are_held_against_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_tensor, "PIECE", 64)
    left = torch.arange(1000.0).view(40, 25)
    right = left.clone()
    right[31, 4] = -1
    found = compared(tmp_path, left.T.contiguous().T, right)
    assert (found.differ, found.first) == (1, (31, 4))


def test_what_has_another_shape_or_is_not_known_is_left_out(tmp_path: Path) -> None:
    left = saved(tmp_path, "a.pt", x=torch.ones(2), y=torch.ones(2).to(torch.float8_e5m2), z=torch.ones(0))
    right = saved(tmp_path, "b.pt", x=torch.ones(3), y=torch.ones(2).to(torch.float8_e5m2), z=torch.ones(0))
    found = elements.compare(left, right, tolerance)
    assert (set(found.elements), found.unread) == ({"z"}, ["y"])


def test_a_damaged_archive_is_one_clear_line(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.pt", x=torch.ones(64))
    whole = path.read_bytes()
    (tmp_path / "b.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableInput):
        elements.compare(path, tmp_path / "b.pt", tolerance)
