"""``.pt`` files → what tensors are in them, with nothing executed and no torch.

    read(Path("inputs.pt"))  →  {"arg_0": SavedTensor(shape=(8, 1024), dtype="torch.bfloat16", …)}

A ``.pt`` file is a zip archive whose ``data.pkl`` rebuilds tensors by calling functions. Here every name in
it resolves to an inert stand-in that remembers what it was called with. The interpreter of the pickle is
the pure-Python one: it keeps its memo in a dict, where the C one sizes an array by a number in the file.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from firstfault.errors import UnreadableInput
from firstfault.read.formats.values import element_size
from firstfault.record import schema

if TYPE_CHECKING:
    import numpy

LARGEST_PICKLE = 64 * 2**20
LARGEST_VALUES = 2**30
"""Bytes of one tensor up to which its values are read for statistics."""

_STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_NUMPY_DTYPES = {
    "bool": "u1",
    **{name: name for name in ("float16", "float32", "float64", "complex64", "complex128")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class SavedTensor:
    """One tensor of an archive; offset and stride in elements, None where the layout has none."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None
    offset: int
    storage: str
    location: str

    def described(self) -> schema.Tensor:
        """As a record's tensor; the device is the one that it was saved from, if the archive says so."""
        return schema.Tensor(
            shape=self.shape,
            dtype=self.dtype,
            device=self.location,
            stride=self.stride,
            offset=self.offset,
            nbytes=math.prod(self.shape) * element_size(self.dtype),
            contiguous=self.stride is None or self.stride == _contiguous_stride(self.shape),
        )


class Inert:
    """Stands for any class, function or object that a pickle names; it can be called and does nothing."""

    def __init__(self, name: str = "", args: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.args = args

    def __call__(self, *args: Any) -> Inert:
        """Remember the call."""
        return Inert(self.name, args)

    def __setstate__(self, state: object) -> None:
        """Leave the state alone."""

    def append(self, item: object) -> None:
        """Take part in a pickled list."""

    def extend(self, items: object) -> None:
        """Take part in a pickled list."""

    def __setitem__(self, key: object, value: object) -> None:
        """Take part in a pickled dict."""


class _Interpreter(pickle._Unpickler):
    """A pickle interpreter that resolves every name to an inert stand-in."""

    dispatch: ClassVar[dict[int, Any]] = {
        code: handler
        for code, handler in pickle._Unpickler.dispatch.items()
        if code not in (*pickle.BYTEARRAY8, *pickle.EXT1, *pickle.EXT2, *pickle.EXT4, *pickle.NEXT_BUFFER)
    }

    def find_class(self, module: str, name: str) -> Any:
        return _rebuilders.get(f"{module}.{name}", Inert(f"{module}.{name}"))

    def persistent_load(self, pid: Any) -> Any:
        return pid


def read(path: Path) -> dict[str, SavedTensor]:
    """The tensors of a saved flat dict, by key; what else it holds is left out.

    Raises:
        UnreadableInput: it is no archive of ``torch.save``, or it is damaged.
    """
    with _opened(path) as archive:
        return _read(archive, path)


def statistics(path: Path, key: str, described: schema.Tensor) -> None:
    """Read the values of one tensor and write their statistics into ``described``, as far as numpy can.

    Raises:
        UnreadableInput: the archive is damaged.
    """
    with _opened(path) as archive:
        saved = _read(archive, path).get(key)
        values = None if saved is None else _values(archive, saved)
    if values is not None:
        _fill(described, values)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise UnreadableInput(f"{path} is not a whole torch.save archive ({error})") from error


def _read(archive: zipfile.ZipFile, path: Path) -> dict[str, SavedTensor]:
    try:
        entry = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
        if entry is None:
            raise UnreadableInput(f"{path} holds no data.pkl; it is not a torch.save archive")
        pickled = _member(archive, entry, LARGEST_PICKLE)
        found = _Interpreter(io.BytesIO(pickled)).load()
    except UnreadableInput:
        raise
    except Exception as error:  # a damaged pickle fails in as many ways as there are opcodes
        raise UnreadableInput(f"{path} holds a damaged pickle ({type(error).__name__}: {error})") from error
    if not isinstance(found, dict):
        raise UnreadableInput(f"{path} does not hold tensors by name")
    return {str(key): value for key, value in found.items() if isinstance(value, SavedTensor)}


def _member(archive: zipfile.ZipFile, name: str, largest: int) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > largest:
        raise UnreadableInput(f"{name} claims {info.file_size} bytes, more than the {largest} that are read")
    with archive.open(info) as member:
        return member.read(info.file_size)


# --- what torch's rebuild functions make of their arguments


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> SavedTensor:
    _, kind, key, location, _ = storage
    dtype = next((item.name.removeprefix("torch.") for item in reversed(rest) if isinstance(item, Inert)), "")
    if not dtype:
        dtype = _STORAGE_DTYPES.get(str(getattr(kind, "name", "")).removeprefix("torch."), "unknown")
    return SavedTensor(_integers(size), f"torch.{dtype}", _integers(stride), int(offset), str(key), str(location))


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_quantized(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> SavedTensor:
    kind = str(getattr(storage[1], "name", "")).removeprefix("torch.").removesuffix("Storage").lower()
    return SavedTensor(_integers(size), f"torch.{kind}", _integers(stride), int(offset), str(storage[2]), "cpu")


def _rebuild_sparse(_layout: Any, data: Any) -> Any:
    values = next((item for item in reversed(data) if isinstance(item, SavedTensor)), None)
    size = next((item for item in reversed(data) if isinstance(item, (tuple, list)) and _all_integers(item)), ())
    if values is None:
        return None
    return SavedTensor(_integers(size), values.dtype, None, 0, values.storage, values.location)


def _size(values: Any = ()) -> tuple[int, ...]:
    return _integers(values)


def _integers(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _all_integers(values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


_rebuilders: dict[str, Any] = {
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_qtensor": _rebuild_quantized,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch.Size": _size,
    "collections.OrderedDict": OrderedDict,
}


# --- values


def _contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _values(archive: zipfile.ZipFile, saved: SavedTensor) -> numpy.ndarray[Any, Any] | None:
    """The tensor's values, widened to what numpy has; None where that cannot be done."""
    name = saved.dtype.removeprefix("torch.")
    if saved.stride is None or (name not in _NUMPY_DTYPES and name != "bfloat16") or 0 in saved.shape:
        return None
    entry = next((member for member in archive.namelist() if member.endswith(f"/data/{saved.storage}")), None)
    if entry is None or archive.getinfo(entry).file_size > LARGEST_VALUES:
        return None
    import numpy  # 60 ms that only a dump's values need

    data = numpy.frombuffer(_member(archive, entry, LARGEST_VALUES), numpy.uint8)
    itemsize = element_size(saved.dtype)
    last = saved.offset + sum((extent - 1) * step for extent, step in zip(saved.shape, saved.stride, strict=True))
    if saved.offset < 0 or min(saved.stride, default=0) < 0 or (last + 1) * itemsize > len(data):
        raise UnreadableInput(f"{archive.filename}: a tensor reaches beyond its storage")
    dtype = numpy.dtype("uint16" if name == "bfloat16" else _NUMPY_DTYPES[name])
    usable = data[: len(data) // itemsize * itemsize].view(dtype)[saved.offset :]
    strided = numpy.lib.stride_tricks.as_strided(
        usable, saved.shape, [step * itemsize for step in saved.stride], writeable=False
    )
    if name == "bfloat16":
        return (strided.astype(numpy.uint32) << 16).view(numpy.float32)
    return strided


def _fill(described: schema.Tensor, values: numpy.ndarray[Any, Any]) -> None:
    import numpy

    if values.dtype.kind == "c":
        values = numpy.abs(values)
    if values.dtype.kind != "f":
        described.min, described.max = int(values.min()), int(values.max())
        described.mean = float(values.mean(dtype=numpy.float64))
        return
    nan = numpy.isnan(values)
    described.nan_count, described.inf_count = int(nan.sum()), int(numpy.isinf(values).sum())
    good = values[~nan]
    with numpy.errstate(all="ignore"):
        bounds = (float(good.min()), float(good.max())) if good.size else (math.nan, math.nan)
        mean = float(values.mean(dtype=numpy.float64))
    described.min, described.max, described.mean = map(_named, (*bounds, mean))


def _named(value: float) -> schema.Statistic:
    return value if math.isfinite(value) else str(value)
