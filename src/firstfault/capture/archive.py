"""Tensors → the bytes of a ``.pt`` file that ``torch.load(weights_only=True)`` reads.

``torch.save`` takes 180 µs for two small tensors and half a millisecond to a file, most of it in building
the archive record by record. What is saved here is always the same thing, a flat dict of tensors over
storages that have just been copied to the host, so the pickle inside depends only on their layout and is
kept, and the archive goes out in one ``writev``.

Format: a zip archive (APPNOTE.TXT 6.3.9, stored entries) of ``data.pkl``, ``byteorder``, ``data/<storage>``
and ``version``, as ``torch/serialization.py`` and ``caffe2/serialize/inline_container.cc`` write it.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from firstfault.record.layout import PRIVATE_FILE

StrPath: TypeAlias = "str | os.PathLike[str]"

LARGEST = 2**31
"""Bytes of tensors up to which the archive needs no 64-bit zip fields."""
MOST_STORAGES = 65_000
"""Storages up to which its 16-bit count of entries suffices."""

_ALIGNMENT = 64  # torch maps storages from the file, and pads them to this
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_CRC = struct.Struct("<I")
_NO_DATE = (0, 0x21)  # 1 January 1980, the zip epoch: time and date fields


@dataclass(frozen=True, slots=True)
class View:
    """How one saved tensor lies on its storage; ``stride`` and ``offset`` in elements."""

    key: str
    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def fits(storages: list[torch.Tensor]) -> bool:
    """Whether ``write`` can hold so many and such large storages; beyond that ``torch.save`` is used."""
    return len(storages) <= MOST_STORAGES and sum(map(len, storages)) < LARGEST


def write(path: StrPath, views: tuple[View, ...], storages: list[torch.Tensor], attachments: dict[str, bytes]) -> int:
    """Save tensors to a new file, and return its size in bytes.

    Args:
        path: the file, which must not exist yet.
        views: the tensors, by the index of their storage.
        storages: the storages' bytes: one-dimensional uint8 tensors on the CPU, contiguous.
        attachments: further records of the archive, which ``torch.load`` leaves alone.

    Raises:
        OSError: the system refused some of it; the file is gone then.
    """
    entries = [("data.pkl", memoryview(_pickle(views, tuple(map(len, storages)))))]
    entries.append(("byteorder", memoryview(sys.byteorder.encode())))
    entries += [(f"data/{index}", _bytes_of(storage)) for index, storage in enumerate(storages)]
    entries.append(("version", memoryview(b"3\n")))
    entries += [(name, memoryview(data)) for name, data in attachments.items()]
    return _write_all(path, _zip(os.path.splitext(os.path.basename(path))[0], entries))


def write_any(path: StrPath, values: dict[str, torch.Tensor], attachments: dict[str, bytes]) -> int:
    """The same by ``torch.save``, for tensors that are not plain and for archives that do not fit."""
    with _new(path) as fd, os.fdopen(fd, "w+b", closefd=False) as file:
        torch.save(values, file)
        with zipfile.ZipFile(file, "a") as appended:
            folder = appended.namelist()[0].split("/")[0]
            for name, data in attachments.items():
                appended.writestr(f"{folder}/{name}", data)
    return os.stat(path).st_size


def tensors(views: tuple[View, ...], storages: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The saved tensors themselves, over the storages' memory."""
    return {
        view.key: torch.empty(0, dtype=view.dtype).set_(
            storages[view.storage].untyped_storage(), view.offset, view.shape, view.stride
        )
        for view in views
    }


def raw(values: torch.Tensor) -> bytes:
    """The bytes of a contiguous CPU tensor."""
    return bytes(_bytes_of(values.view(torch.uint8)))


def _bytes_of(storage: torch.Tensor) -> memoryview:
    """The memory of a CPU tensor; the caller keeps the tensor alive."""
    size = storage.numel()
    return memoryview((ctypes.c_char * size).from_address(storage.data_ptr())) if size else memoryview(b"")


class _Storage:
    """Stands for a storage in the pickle; torch refers to storages by persistent id."""

    def __init__(self, key: int, size: int) -> None:
        self.persistent_id = ("storage", torch.UntypedStorage, str(key), "cpu", size)


class _Rebuilt:
    """Pickles as the call that torch rebuilds a tensor with."""

    def __init__(self, view: View, storage: _Storage) -> None:
        self._arguments: tuple[Any, ...] = (
            storage,
            view.offset,
            view.shape,
            view.stride,
            False,
            OrderedDict(),
            view.dtype,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v3, self._arguments


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        return value.persistent_id if isinstance(value, _Storage) else None


@lru_cache(maxsize=4096)
def _pickle(views: tuple[View, ...], sizes: tuple[int, ...]) -> bytes:
    stand_ins = [_Storage(index, size) for index, size in enumerate(sizes)]
    file = io.BytesIO()
    _Pickler(file, protocol=2).dump({view.key: _Rebuilt(view, stand_ins[view.storage]) for view in views})
    return file.getvalue()


def _zip(folder: str, entries: list[tuple[str, memoryview]]) -> list[bytes | memoryview]:
    """The pieces of a zip archive of stored entries, in order."""
    names, datas = zip(*entries, strict=True)
    heads, records, end = _frame(folder, names, tuple(map(len, datas)))
    pieces: list[bytes | memoryview] = []
    directory: list[bytes] = []
    for data, (before, after), (start, rest) in zip(datas, heads, records, strict=True):
        crc = _CRC.pack(zlib.crc32(data))
        pieces += [before + crc + after, data]
        directory += [start, crc, rest]
    return [*pieces, b"".join([*directory, end])]


@lru_cache(maxsize=1024)
def _frame(
    folder: str, names: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]], bytes]:
    """All of an archive but its data and their checksums: each entry's head, its directory record, and the end.

    Heads and records come in two parts, between which the checksum goes.
    """
    heads, records, position = [], [], 0
    for name, size in zip(names, sizes, strict=True):
        path = f"{folder}/{name}".encode()
        padding = -(position + _LOCAL.size + len(path) + 4) % _ALIGNMENT
        extra = struct.pack("<2sH", b"FB", padding) + bytes(padding)
        common = (0, 0, *_NO_DATE, 0, size, size, len(path))
        head = _LOCAL.pack(b"PK\3\4", 0, *common, len(extra)) + path + extra
        record = _CENTRAL.pack(b"PK\1\2", 0, 0, *common, 0, 0, 0, 0, 0, position) + path
        heads.append((head[:14], head[18:]))
        records.append((record[:16], record[20:]))
        position += len(head) + size
    length = sum(len(start) + _CRC.size + len(rest) for start, rest in records)
    end = _END.pack(b"PK\5\6", 0, 0, len(names), len(names), length, position, 0)
    return heads, records, end


def _write_all(path: StrPath, pieces: list[bytes | memoryview]) -> int:
    with _new(path) as fd:
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            written = os.writev(fd, left[:1024])
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]
    return sum(map(len, pieces))


@contextmanager
def _new(path: StrPath) -> Iterator[int]:
    """A new file, readable by its owner alone, that does not stay when writing it fails."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        yield fd
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(fd)
