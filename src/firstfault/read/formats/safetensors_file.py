"""``.safetensors`` files → what tensors are in them: FlashInfer's dumps with ``FLASHINFER_DUMP_SAFETENSORS=1``.

    b"\\x40\\0\\0\\0\\0\\0\\0\\0" b'{"arg_0":{"dtype":"BF16","shape":[8,64],"data_offsets":[0,1024]}}' …

Format: https://huggingface.co/docs/safetensors. Strides are lost in it: everything is contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.files import open_regular
from firstfault.read.formats import saved_tensor
from firstfault.read.formats.saved_tensor import Readers, SavedTensor
from firstfault.read.formats.values import element_size
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.read.formats.saved_tensor import Array

LARGEST_HEADER = 16 * 2**20
_LENGTH_BYTES = 8
_ABOUT = "__metadata__"
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip


class _Entry(msgspec.Struct):
    """One tensor of the header; offsets in bytes behind it."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Found(NamedTuple):
    saved: SavedTensor
    begin: int


def read(path: Path) -> dict[str, SavedTensor]:
    """The tensors of a file by key.

    Raises:
        UnreadableInput: it is no such file, or it is damaged.
    """
    with open_regular(path) as file:
        return {key: found.saved for key, found in _tensors(file, path).items()}


def raw(path: Path) -> Iterator[tuple[str, SavedTensor, bytes]]:
    """The tensors of a file, each with its key and its bytes.

    Raises:
        UnreadableInput: it is no such file, or it is damaged.
    """
    with open_regular(path) as file:
        for key, (saved, begin) in _tensors(file, path).items():
            file.seek(begin)
            nbytes = math.prod(saved.shape) * element_size(saved.dtype)
            data = file.read(nbytes)
            if len(data) != nbytes:
                raise UnreadableInput(f"{path} is shorter than it claims")
            yield key, saved, data


def add_statistics(path: Path, described: Mapping[str, schema.Tensor]) -> None:
    """Read the values of some tensors and write their statistics into what describes them, by key.

    Raises:
        UnreadableInput: the file is damaged.
    """
    with open_regular(path) as file:
        for key, (saved, begin) in _tensors(file, path).items():
            if key not in described:
                continue
            nbytes = math.prod(saved.shape) * element_size(saved.dtype)
            try:
                saved_tensor.add_statistics(saved, file, begin, nbytes, described[key])
            except UnreadableInput as error:
                raise UnreadableInput(f"{path}: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[Readers]:
    """The tensors of a file, each with what reads its values, as long as the block lasts.

    Raises:
        UnreadableInput: the file is damaged.
    """
    with open_regular(path) as file:
        found = _tensors(file, path)

        def values(key: str) -> Iterator[Array]:
            saved, begin = found[key]
            nbytes = math.prod(saved.shape) * element_size(saved.dtype)
            try:
                yield from saved_tensor.pieces(saved, file, begin, nbytes)
            except UnreadableInput as error:
                raise UnreadableInput(f"{path}: {error}") from error

        yield {key: (each.saved, partial(values, key)) for key, each in found.items()}


def values(path: Path) -> dict[str, saved_tensor.Array]:
    """The values of all tensors, by key.

    Raises:
        UnreadableInput: the file is damaged, or holds values that numpy has no dtype for.
    """
    found = {}
    with open_regular(path) as file:
        for key, (saved, begin) in _tensors(file, path).items():
            nbytes = math.prod(saved.shape) * element_size(saved.dtype)
            try:
                found[key] = saved_tensor.values(saved, file, begin, nbytes)
            except UnreadableInput as error:
                raise UnreadableInput(f"{path}: {error}") from error
    return found


def _tensors(file: BinaryIO, path: Path) -> dict[str, _Found]:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > LARGEST_HEADER:
        raise UnreadableInput(f"{path} is not a safetensors file: its header would have {length} bytes")
    try:
        header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        entries = {key: msgspec.json.decode(raw, type=_Entry) for key, raw in header.items() if key != _ABOUT}
        return {key: _found(entry, _LENGTH_BYTES + length) for key, entry in entries.items()}
    except (msgspec.DecodeError, RecursionError, UnreadableInput) as error:
        raise UnreadableInput(f"{path} is damaged ({error})") from error


def _found(entry: _Entry, behind_header: int) -> _Found:
    shape = tuple(entry.shape)
    dtype = f"torch.{_DTYPES.get(entry.dtype, entry.dtype.lower())}"
    begin, end = entry.data_offsets
    saved = SavedTensor(shape, dtype, saved_tensor.contiguous_stride(shape), 0, "", "")
    if begin < 0 or end - begin != math.prod(shape) * element_size(dtype):
        raise UnreadableInput("a tensor's bytes are not as many as its shape says")
    return _Found(saved, behind_header + begin)
