"""``.pt`` files → what tensors are in them, with nothing executed and no torch.

    read(Path("inputs.pt"))  →  {"arg_0": SavedTensor(shape=(8, 1024), dtype="torch.bfloat16", …)}

A ``.pt`` file is a zip archive whose ``data.pkl`` rebuilds tensors by calling functions. Here every name in
it is an inert stand-in, and a call of one is looked up in a table of a few; anything else that a pickle can
ask for is refused.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, TypeVar, cast

from firstfault.errors import UnreadableInput
from firstfault.read.files import open_regular
from firstfault.read.formats import inert_pickle, saved_tensor
from firstfault.read.formats.inert_pickle import Inert, Interpreter, known
from firstfault.read.formats.saved_tensor import Readers, SavedTensor
from firstfault.record import schema
from firstfault.record.plain import plain_text

if TYPE_CHECKING:
    from firstfault.read.formats.saved_tensor import Array

T = TypeVar("T")

LARGEST_PICKLE = 32 * 2**20
LARGEST_DIRECTORY = 16 * 2**20
"""Bytes of the list of a zip archive's entries; each becomes half a kB of objects."""

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
    "QUInt8Storage": "quint8",
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
}


class _Interpreter(Interpreter):
    """Reads what ``torch.save`` writes, with any protocol; no sets, no extension registry, no bytearrays."""

    dispatch: ClassVar[dict[int, Any]] = known(pickle.BINPERSID)

    def persistent_load(self, pid: Any) -> Any:
        return pid

    def call(self, named: Inert, arguments: tuple[Any, ...]) -> Any:
        return _call(named, arguments)

    def build(self, built: Any, state: Any) -> None:
        """An object's state tells nothing of a tensor."""


class _Bounded:
    """A file of which no single read may be larger than the list of a zip archive's entries."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._read = file.read

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, or all there are, within the bound."""
        data = self._read(LARGEST_DIRECTORY + 1 if size < 0 else min(size, LARGEST_DIRECTORY + 1))
        if len(data) > LARGEST_DIRECTORY:
            raise UnreadableInput("its list of entries is larger than that of any dump")
        return data


class Saved(NamedTuple):
    """What a saved flat dict holds: tensors by key, and the keys of what is none that is known here."""

    tensors: dict[str, SavedTensor]
    others: list[str]


def read(path: Path) -> Saved:
    """What a saved flat dict holds.

    Raises:
        UnreadableInput: it is no archive of ``torch.save``, or it is damaged.
    """
    with open_regular(path) as file:
        return _guarded(path, lambda: _read(*_opened(file)))


def add_statistics(path: Path, described: Mapping[str, schema.Tensor]) -> None:
    """Read the values of some tensors and write their statistics into what describes them, by key.

    Raises:
        UnreadableInput: the archive is damaged.
    """

    def add(archive: zipfile.ZipFile, folder: str) -> None:
        saved = _read(archive, folder).tensors
        for key in described.keys() & saved.keys():
            entry = _stored(archive, f"{folder}data/{saved[key].storage}")
            with archive.open(entry) as storage:
                saved_tensor.add_statistics(saved[key], storage, 0, entry.file_size, described[key])

    with open_regular(path) as file:
        _guarded(path, lambda: add(*_opened(file)))


@contextmanager
def opened(path: Path) -> Iterator[Readers]:
    """The tensors of a file, each with what reads its values, as long as the block lasts.

    Raises:
        UnreadableInput: the archive is damaged.
    """
    with open_regular(path) as file:
        yield _guarded(path, lambda: _readers(path, *_opened(file)))


def _readers(path: Path, archive: zipfile.ZipFile, folder: str) -> Readers:
    def values(saved: SavedTensor) -> Iterator[Array]:
        entry = _stored(archive, f"{folder}data/{saved.storage}")
        try:
            with archive.open(entry) as storage:
                yield from saved_tensor.pieces(saved, storage, 0, entry.file_size)
        except UnreadableInput as error:
            raise UnreadableInput(f"{path}: {error}") from error
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise UnreadableInput(f"{path} is damaged ({error})") from error

    found = _read(archive, folder).tensors
    for saved in found.values():
        _stored(archive, f"{folder}data/{saved.storage}")
    return {key: (saved, partial(values, saved)) for key, saved in found.items()}


def values(path: Path) -> dict[str, saved_tensor.Array]:
    """The values of all tensors, by key.

    Raises:
        UnreadableInput: the archive is damaged, or holds values that numpy has no dtype for.
    """

    def read_them(archive: zipfile.ZipFile, folder: str) -> dict[str, saved_tensor.Array]:
        found = {}
        for key, saved in _tensors(archive, folder).items():
            entry = _stored(archive, f"{folder}data/{saved.storage}")
            with archive.open(entry) as storage:
                found[key] = saved_tensor.values(saved, storage, 0, entry.file_size)
        return found

    with open_regular(path) as file:
        return _guarded(path, lambda: read_them(*_opened(file)))


def _tensors(archive: zipfile.ZipFile, folder: str) -> dict[str, SavedTensor]:
    """The tensors of a flat dict, or the one tensor that was saved."""
    loaded = _loaded(archive, folder)
    return {"values": loaded} if isinstance(loaded, SavedTensor) else _named(loaded).tensors


def _guarded(path: Path, read_it: Callable[[], T]) -> T:
    """What ``read_it`` gives; whatever goes wrong in a damaged archive is one kind of error, with the path."""
    try:
        return read_it()
    except UnreadableInput as error:
        raise UnreadableInput(f"{path}: {error}") from error
    except zipfile.BadZipFile as error:
        raise UnreadableInput(f"{path} is not a whole torch.save archive ({error})") from error
    except KeyError as error:
        raise UnreadableInput(f"{path} is damaged: it refers to {error}, which it does not hold") from error
    except Exception as error:  # a damaged pickle or zip fails in as many ways as it has fields
        raise UnreadableInput(f"{path} is damaged ({type(error).__name__}: {error})") from error


def _opened(file: BinaryIO) -> tuple[zipfile.ZipFile, str]:
    """The archive, and the folder in it that everything lies in."""
    archive = zipfile.ZipFile(cast(IO[bytes], _Bounded(file)))
    name = next((name for name in archive.namelist() if f"/{name}".endswith("/data.pkl")), None)
    if name is None:
        raise UnreadableInput("it holds no data.pkl; it is not a torch.save archive")
    return archive, name.removesuffix("data.pkl")


def _read(archive: zipfile.ZipFile, folder: str) -> Saved:
    return _named(_loaded(archive, folder))


def _loaded(archive: zipfile.ZipFile, folder: str) -> Any:
    """What was saved, with stand-ins for what is not known here."""
    entry = _stored(archive, f"{folder}data.pkl")
    if entry.file_size > LARGEST_PICKLE:
        raise UnreadableInput(f"its pickle has {entry.file_size} bytes, more than the {LARGEST_PICKLE} that are read")
    with archive.open(entry) as member:
        pickled = member.read(entry.file_size)
    return _Interpreter(pickled, inert_pickle.MOST_READS).load()


def _named(found: Any) -> Saved:
    """The tensors of a flat dict by key.

    Raises:
        UnreadableInput: it is none.
    """
    if not isinstance(found, dict):
        raise UnreadableInput("it does not hold tensors by name")
    named = {plain_text(str(key)): value for key, value in found.items()}
    tensors = {key: value for key, value in named.items() if isinstance(value, SavedTensor)}
    return Saved(tensors, [key for key in named if key not in tensors])


def _stored(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """An entry, as ``torch.save`` writes them; a compressed one could be larger than any disk."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED:
        raise UnreadableInput("it is compressed, which torch.save never does")
    return entry


# --- what torch's rebuild functions make of their arguments


def _call(named: Inert, arguments: tuple[Any, ...]) -> Any:
    rebuild = _REBUILDERS.get(named.name)
    if rebuild is None:
        return Inert(named.name)
    try:
        return rebuild(*arguments)
    except (TypeError, ValueError) as error:
        raise pickle.UnpicklingError(f"it calls {named.name} with what makes no tensor") from error


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> SavedTensor:
    kind, key, location = _storage(storage)
    named = next((item.name for item in reversed(rest) if isinstance(item, Inert)), "")
    dtype = named.removeprefix("torch.") or _STORAGE_DTYPES.get(kind, "unknown")
    (begin,) = _integers((offset,))
    return SavedTensor(_integers(size), f"torch.{dtype}", _integers(stride), begin, key, location)


def _rebuild_quantized(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> SavedTensor:
    return _rebuild(storage, offset, size, stride)


def _rebuild_sparse(_layout: Any, data: Any) -> Any:
    """Its values, with the shape of the whole."""
    values = next((item for item in reversed(data) if isinstance(item, SavedTensor)), None)
    size = next((item for item in reversed(data) if isinstance(item, (tuple, list)) and _all_integers(item)), ())
    if values is None:
        return None
    return SavedTensor(_integers(size), values.dtype, None, 0, values.storage, values.location)


def _rebuild_subclass(function: Any, _kind: Any, arguments: Any, _state: Any) -> Any:
    """The plain tensor that a subclass is saved as."""
    if not isinstance(function, Inert) or not isinstance(arguments, tuple):
        raise pickle.UnpicklingError("it calls what is no function")
    return _call(function, arguments)


def _storage(storage: Any) -> tuple[str, str, str]:
    """Class, key and device of what torch refers to a storage by."""
    _, kind, key, location, _ = storage
    if not (isinstance(kind, Inert) and isinstance(key, str) and isinstance(location, str)):
        raise pickle.UnpicklingError("it refers to no storage")
    return kind.name.removeprefix("torch.").removeprefix("storage."), key, plain_text(location)


def _integers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or not _all_integers(values):
        raise pickle.UnpicklingError("a tensor's layout is not of whole numbers")
    return tuple(values)


def _all_integers(values: Any) -> bool:
    return all(type(value) is int for value in values)


_REBUILDERS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild,
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch._utils._rebuild_qtensor": _rebuild_quantized,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch._tensor._rebuild_from_type_v2": _rebuild_subclass,
    "torch.Size": lambda values=(): _integers(values),
    "collections.OrderedDict": lambda *_: {},
}
