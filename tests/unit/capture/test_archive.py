from __future__ import annotations

import errno
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import archive, describe, snapshot
from tests.unit.descriptors import opened
from tests.unit.recording import bits, loaded, same

DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.quint"))
    },
    key=str,
)


def strided(storage: torch.UntypedStorage, dtype: torch.dtype, data: st.DataObject) -> torch.Tensor:
    """Any view that the storage has room for."""
    rank = data.draw(st.integers(0, 3))
    shape = data.draw(st.tuples(*[st.integers(0, 4)] * rank))
    stride = data.draw(st.tuples(*[st.integers(0, 5)] * rank))
    room = storage.nbytes() // dtype.itemsize
    reach = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) + 1
    if 0 in shape:
        offset = data.draw(st.integers(0, 50))
    elif reach > room:
        shape, stride, offset = (0,), (1,), 0
    else:
        offset = data.draw(st.integers(0, room - reach))
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Views of any layout, some of them over the same storage."""
    data = draw(st.data())
    sizes = draw(st.lists(st.integers(0, 700), min_size=1, max_size=3))
    storages = [(torch.arange(size) * 37 % 251).to(torch.uint8).untyped_storage() for size in sizes]
    count = draw(st.integers(0, 6))
    return {
        f"arg_{index}": strided(draw(st.sampled_from(storages)), draw(st.sampled_from(DTYPES)), data)
        for index in range(count)
    }


def taken(values: dict[str, torch.Tensor]) -> snapshot.Snapshot:
    walk = describe.Walk(dump=True)
    describe.describe_call((), values, walk)
    return snapshot.take(snapshot.plan(zip(values, walk.found, strict=True)))


def overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the bytes that two tensors span have any in common."""
    spans = []
    for tensor in (left, right):
        begin = tensor.data_ptr()
        size = describe.storage_bytes_needed(tensor) - int(tensor.storage_offset()) * tensor.dtype.itemsize
        spans.append((begin, begin + size))
    return left.numel() > 0 < right.numel() and max(spans)[0] < min(spans)[1]


@given(tensors())
def test_torch_loads_what_was_written(tmp_path: Path, values: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "inputs.pt"
    path.unlink(missing_ok=True)
    held = taken(values)
    size = archive.write(path, held.views, held.storages, {"random_state/cpu": b"1234"})
    assert size == path.stat().st_size
    for back in (loaded(path), torch.load(path, weights_only=True, mmap=True)):
        assert sorted(back) == sorted(values)
        for key, value in values.items():
            assert same(back[key], value)
        for key, value in values.items():
            for other, second in values.items():
                if key < other and overlap(value, second):
                    distance = back[key].data_ptr() - back[other].data_ptr()
                    assert distance == value.data_ptr() - second.data_ptr()


@given(tensors())
def test_the_zip_is_whole(tmp_path: Path, values: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "outputs.pt"
    path.unlink(missing_ok=True)
    held = taken(values)
    archive.write(path, held.views, held.storages, {"random_state/cpu": b"1234"})
    with zipfile.ZipFile(path) as opened:
        assert opened.testzip() is None
        assert opened.read("outputs/random_state/cpu") == b"1234"
        for entry in opened.infolist():
            name_and_extra = path.read_bytes()[entry.header_offset + 26 : entry.header_offset + 30]
            lengths = int.from_bytes(name_and_extra[:2], "little") + int.from_bytes(name_and_extra[2:], "little")
            assert (entry.header_offset + 30 + lengths) % 64 == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    value = torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 1, (3,), (1,))
    held = taken({"x": value})
    archive.write(tmp_path / "a.pt", held.views, held.storages, {})
    assert same(loaded(tmp_path / "a.pt")["x"], value)


def test_the_kept_pickle_fits_the_layout_and_not_the_values(tmp_path: Path) -> None:
    for index, (values, expected) in enumerate([([1.0, 2.0], [1.0, 2.0]), ([3.0, 4.0], [3.0, 4.0])]):
        held = taken({"x": torch.tensor(values)})
        archive.write(tmp_path / f"{index}.pt", held.views, held.storages, {})
        assert loaded(tmp_path / f"{index}.pt")["x"].tolist() == expected


def test_keys_are_any_text(tmp_path: Path) -> None:
    for index, key in enumerate(["", "é", "a/b", "\x00", "data.pkl"]):
        held = taken({"x": torch.ones(1)})
        views = tuple(archive.View(key, *_rest(view)) for view in held.views)
        archive.write(tmp_path / f"{index}.pt", views, held.storages, {})
        assert list(loaded(tmp_path / f"{index}.pt")) == [key]


def _rest(view: archive.View) -> tuple[Any, ...]:
    return (view.storage, view.dtype, view.shape, view.stride, view.offset)


def test_more_pieces_than_one_system_call_takes(tmp_path: Path) -> None:
    values = {f"x{index}": torch.tensor([index]) for index in range(3000)}
    held = taken(values)
    archive.write(tmp_path / "a.pt", held.views, held.storages, {})
    assert torch.equal(torch.cat(list(loaded(tmp_path / "a.pt").values())), torch.arange(3000))


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST", 10)
    monkeypatch.setattr(archive, "MOST_STORAGES", 2)
    piece = torch.zeros(4, dtype=torch.uint8)
    assert archive.fits([piece, piece])
    assert not archive.fits([piece, piece, piece[:1]])
    assert not archive.fits([torch.zeros(10, dtype=torch.uint8)])


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    held = taken({"x": torch.ones(2)})
    archive.write(tmp_path / "a.pt", held.views, held.storages, {})
    archive.write_any(tmp_path / "b.pt", {"x": torch.ones(2)}, {})
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.pt", "b.pt")] == [0o600, 0o600]


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"precious")
    held = taken({"x": torch.ones(2)})
    for write in writers(held):
        with pytest.raises(FileExistsError):
            write(path)
    assert path.read_bytes() == b"precious"


def writers(held: snapshot.Snapshot) -> list[Callable[[Path], int]]:
    values = archive.tensors(held.views, held.storages)
    return [
        lambda path: archive.write(path, held.views, held.storages, {}),
        lambda path: archive.write_any(path, values, {"random_state/cpu": b"1234"}),
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_a_full_disk_leaves_no_part_of_a_file(which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = writers(taken({"x": torch.ones(2**17)}))[which]
    open_files = opened()

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a.pt")
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def some(fd: int, pieces: list[Any]) -> int:
        return real(fd, bytes(pieces[0][: max(1, len(pieces[0]) // 2)]))

    monkeypatch.setattr(os, "writev", some)
    value = torch.arange(100)
    held = taken({"x": value})
    archive.write(tmp_path / "a.pt", held.views, held.storages, {})
    assert same(loaded(tmp_path / "a.pt")["x"], value)


def test_the_other_way_takes_what_is_not_plain(tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse()
    archive.write_any(tmp_path / "a.pt", {"s": sparse, "x": torch.ones(2)}, {"random_state/cpu": b"1234"})
    back = loaded(tmp_path / "a.pt")
    assert torch.equal(back["s"].to_dense(), torch.eye(3))
    with zipfile.ZipFile(tmp_path / "a.pt") as opened:
        assert opened.testzip() is None
        (state,) = [name for name in opened.namelist() if name.endswith("/random_state/cpu")]
        assert opened.read(state) == b"1234"


def test_raw_bytes_of_a_tensor() -> None:
    values = torch.arange(5, dtype=torch.int32)
    assert archive.raw(values) == bits(values)
