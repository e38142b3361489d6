"""What a program has saved of its results: every form, with nothing in it executed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import save_file

from firstfault.errors import UnreadableInput
from firstfault.read.formats import saved_values

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "c": torch.tensor([3, 4]),
}


def check(found: dict[str, Any]) -> None:
    assert set(found) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].shape == tuple(tensor.shape)
        assert found[name].tolist() == tensor.tolist()


@given(arrays.arrays(numpy.float64, arrays.array_shapes(max_dims=3), elements=st.floats(allow_nan=False)))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_npz_npy_and_json_give_back_what_was_saved(tmp_path: Path, array: Any) -> None:
    numpy.savez(tmp_path / "a.npz", one=array)
    numpy.save(tmp_path / "a.npy", array)
    (tmp_path / "a.json").write_text(json.dumps({"one": array.tolist()}))
    for name, key in (("a.npz", "one"), ("a.npy", saved_values.ONLY), ("a.json", "one")):
        found = saved_values.read(tmp_path / name)[key]
        assert numpy.array_equal(found, array)


def test_a_dict_of_tensors(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "a.pt")
    check(saved_values.read(tmp_path / "a.pt"))


def test_one_tensor(tmp_path: Path) -> None:
    torch.save(TENSORS["a"].t(), tmp_path / "a.pt")
    found = saved_values.read(tmp_path / "a.pt")
    assert found[saved_values.ONLY].tolist() == TENSORS["a"].t().tolist()


def test_safetensors(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    check(saved_values.read(tmp_path / "a.safetensors"))


def test_lists_of_different_lengths_are_one_behind_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[[1, 2], [3.5], []]")
    assert saved_values.read(tmp_path / "a.json")[saved_values.ONLY].tolist() == [1, 2, 3.5]


def test_pickled_objects_are_not_executed(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "executed"), "w"))

    numpy.save(tmp_path / "a.npy", numpy.array([Bad()], dtype=object), allow_pickle=True)
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Bad()))
    torch.save({"x": Bad()}, tmp_path / "c.pt")
    for name in ("a.npy", "b.pt", "c.pt"):
        with pytest.raises(UnreadableInput):
            saved_values.read(tmp_path / name)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.npz", b"PK\x03\x04 torn"),
        ("a.npy", b"\x93NUMPY\x01"),
        ("a.json", b"[1, "),
        ("a.json", b'["x"]'),
        ("a.json", b"{}"),
        ("a.pt", b""),
        ("a.safetensors", b"\x08"),
        ("a.txt", b"1"),
    ],
)
def test_what_is_no_such_file_is_said(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnreadableInput):
        saved_values.read(tmp_path / name)
