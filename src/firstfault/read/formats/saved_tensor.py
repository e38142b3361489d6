"""A tensor as a file holds it: where it lies, how it is laid out, and what its values are like.

    SavedTensor(shape=(8, 1024), dtype="torch.bfloat16", stride=(1024, 1), offset=0, storage="0", …)

Values are read in pieces, so that statistics of a tensor of any size take a few MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from firstfault.errors import UnreadableInput
from firstfault.read.formats.values import element_size, nbytes
from firstfault.record import schema
from firstfault.record.plain import plain_number

if TYPE_CHECKING:
    import numpy

    Array: TypeAlias = numpy.ndarray[Any, Any]

LARGEST_STRIDED = 2**28
"""Bytes that a tensor which is not contiguous may reach over, and have as elements, for its values to be read."""
PIECE = 2**22
MOST_DIMS = 64
LARGEST = 2**62
"""No extent, step, offset or number of elements is larger."""
IMPOSSIBLE = "it describes a tensor that cannot be"

_NUMPY_DTYPES = {
    "bool": "u1",
    "bfloat16": "u2",
    **{name: name for name in ("float16", "float32", "float64", "complex64", "complex128")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor of a file; offset and stride in elements, None where the layout has none.

    Raises:
        UnreadableInput: no tensor can be laid out so.
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None
    offset: int
    storage: str
    location: str

    def __post_init__(self) -> None:
        strides = self.stride if self.stride is not None else self.shape
        possible = all(map(_are_possible, (self.shape, strides, (self.offset,)))) and len(strides) == len(self.shape)
        if not possible or math.prod(self.shape) >= LARGEST:
            raise UnreadableInput(IMPOSSIBLE)

    def described(self) -> schema.Tensor:
        """As a record's tensor; the device is the one that it was saved from, if the file says so."""
        return schema.Tensor(
            shape=self.shape,
            dtype=self.dtype,
            device=self.location,
            stride=self.stride,
            offset=self.offset,
            nbytes=nbytes(self.shape, self.dtype),
            contiguous=self.is_contiguous,
        )

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements follow each other in order."""
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.stride or ()), strict=False):
            if extent > 1 and stride != step:
                return False
            step *= extent
        return True

    @property
    def reach(self) -> int:
        """Elements from its first to behind its last."""
        if 0 in self.shape or self.stride is None:
            return 0
        return 1 + sum((extent - 1) * step for extent, step in zip(self.shape, self.stride, strict=True))


Readers: TypeAlias = "dict[str, tuple[SavedTensor, Callable[[], Iterator[Array]]]]"
"""The tensors of a file by key, each with what gives its values, in pieces."""


def _are_possible(numbers: tuple[int, ...]) -> bool:
    """Whether a tensor can have these extents or steps; asked first, as a product of thousands takes for ever."""
    return len(numbers) <= MOST_DIMS and all(0 <= number < LARGEST for number in numbers)


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The steps of a contiguous tensor.

    Raises:
        UnreadableInput: no tensor has that shape.
    """
    if not _are_possible(shape):
        raise UnreadableInput(IMPOSSIBLE)
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def add_statistics(saved: SavedTensor, storage: IO[bytes], begin: int, nbytes: int, described: schema.Tensor) -> None:
    """Read a tensor's values and write their statistics into ``described``, as far as numpy knows its dtype.

    Args:
        saved: the tensor.
        storage: a file that holds its storage, and can be sought in.
        begin: the byte where the storage begins.
        nbytes: how many bytes it has.
        described: as ``saved`` describes itself; changed.

    Raises:
        UnreadableInput: the tensor reaches beyond its storage.
    """
    if not is_readable(saved):
        if is_too_large(saved):
            described.statistics = f"[skipped: not contiguous and larger than {LARGEST_STRIDED} bytes]"
        return
    totals = _Totals()
    for piece in pieces(saved, storage, begin, nbytes):
        totals.add(numpy_magnitude(piece))
    totals.write(described)


def is_readable(saved: SavedTensor) -> bool:
    """Whether its values can be read: numpy knows its dtype, there are some, and they fit where they must."""
    known = saved.dtype.removeprefix("torch.") in _NUMPY_DTYPES
    return saved.stride is not None and known and saved.reach > 0 and not is_too_large(saved)


def is_too_large(saved: SavedTensor) -> bool:
    """Whether it is scattered over more memory than is taken for it."""
    size = element_size(saved.dtype)
    return not saved.is_contiguous and max(saved.reach, math.prod(saved.shape)) * size > LARGEST_STRIDED


def pieces(saved: SavedTensor, storage: IO[bytes], begin: int, nbytes: int) -> Iterator[Array]:
    """The values of a readable tensor in order, in one-dimensional arrays of a few MiB, widened to what numpy has.

    Of two tensors with the same shape and dtype they are cut at the same places.

    Raises:
        UnreadableInput: the tensor reaches beyond its storage.
    """
    size = element_size(saved.dtype)
    if (saved.offset + saved.reach) * size > nbytes:
        raise UnreadableInput("a tensor reaches beyond its storage")
    storage.seek(begin + saved.offset * size)
    yield from _pieces(saved, storage, saved.dtype.removeprefix("torch."))


def numpy_magnitude(values: Array) -> Array:
    """The values themselves, or of complex ones the magnitudes."""
    import numpy

    return numpy.abs(values) if values.dtype.kind == "c" else values


def values(saved: SavedTensor, storage: IO[bytes], begin: int, nbytes: int) -> Array:
    """All values of a tensor in its shape, widened to what numpy has; of complex ones the magnitudes.

    Args:
        saved: the tensor.
        storage: a file that holds its storage, and can be sought in.
        begin: the byte where the storage begins.
        nbytes: how many bytes it has.

    Raises:
        UnreadableInput: numpy has no such dtype, or the tensor reaches beyond its storage.
    """
    import numpy

    name = saved.dtype.removeprefix("torch.")
    if saved.stride is None or name not in _NUMPY_DTYPES:
        raise UnreadableInput(f"the values of a {saved.dtype} tensor cannot be read")
    if saved.reach == 0:
        return numpy.empty(saved.shape)
    size = element_size(saved.dtype)
    whole = max(saved.reach, math.prod(saved.shape)) * size
    if (saved.offset + saved.reach) * size > nbytes:
        raise UnreadableInput("a tensor reaches beyond its storage")
    if not saved.is_contiguous and whole > LARGEST_STRIDED:
        raise UnreadableInput(f"a tensor is not contiguous and larger than {LARGEST_STRIDED} bytes")
    storage.seek(begin + saved.offset * size)
    parts = [piece.copy() for piece in _pieces(saved, storage, name)]
    return numpy_magnitude(numpy.concatenate(parts).reshape(saved.shape))


def _pieces(saved: SavedTensor, storage: IO[bytes], name: str) -> Iterator[Array]:
    """The values in one-dimensional arrays of ``PIECE`` bytes, the last with what is left."""
    import numpy  # 60 ms that only a dump's values need

    dtype = numpy.dtype(_NUMPY_DTYPES[name])
    left = saved.reach * dtype.itemsize
    if saved.is_contiguous:
        while left > 0:
            data = _exactly(storage, min(left, PIECE))
            left -= len(data)
            yield _widened(numpy.frombuffer(data, dtype), name)
        return
    flat = numpy.frombuffer(_exactly(storage, left), dtype)
    steps = [step * dtype.itemsize for step in saved.stride or ()]
    strided = numpy.lib.stride_tricks.as_strided(flat, saved.shape, steps, writeable=False)
    flat = numpy.ascontiguousarray(strided).reshape(-1)
    for at in range(0, flat.size, PIECE // dtype.itemsize):
        yield _widened(flat[at : at + PIECE // dtype.itemsize], name)


def _exactly(storage: IO[bytes], count: int) -> bytes:
    data = storage.read(count)
    if len(data) != count:
        raise UnreadableInput("a storage is shorter than it claims")
    return data


def _widened(values: Array, name: str) -> Array:
    import numpy

    if name == "bfloat16":
        return (values.astype(numpy.uint32) << 16).view(numpy.float32)
    return values


class _Totals:
    """Statistics gathered piece by piece; of the magnitude for complex values."""

    def __init__(self) -> None:
        self._count = self._nan = self._inf = 0
        self._sum: Any = 0.0
        self._bounds: list[Any] = []
        self._floating = False

    def add(self, values: Array) -> None:
        """Take in one piece."""
        import numpy

        self._count += values.size
        self._floating = values.dtype.kind == "f"
        if self._floating:
            nan = numpy.isnan(values)
            self._nan += int(nan.sum())
            self._inf += int(numpy.isinf(values).sum())
        with numpy.errstate(all="ignore"):
            self._sum += values.sum(dtype=numpy.float64)
            good = values[~nan] if self._floating else values
        if good.size:
            self._bounds += [good.min(), good.max()]
            self._bounds = [min(self._bounds), max(self._bounds)]

    def write(self, described: schema.Tensor) -> None:
        """Put the statistics where they belong."""
        kind = float if self._floating else int
        bounds = [kind(bound) for bound in self._bounds] or [math.nan, math.nan]
        described.min, described.max = map(plain_number, bounds)
        described.mean = plain_number(float(self._sum) / self._count)
        if self._floating:
            described.nan_count, described.inf_count = self._nan, self._inf
