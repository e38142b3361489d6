"""What a program has saved of its results → arrays by name.

    read(Path("logits.npz"))  →  {"logits": array([[…]])}

Taken are ``.npz`` and ``.npy`` without pickled objects, ``.safetensors``, ``.pt`` of a tensor or a flat dict of
tensors, and ``.json`` of numbers, lists of numbers, or an object of those. Nothing in them is executed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from firstfault.errors import UnreadableInput
from firstfault.read.files import open_regular, read_whole
from firstfault.read.formats import safetensors_file, torch_archive

if TYPE_CHECKING:
    import numpy

    Arrays: TypeAlias = dict[str, numpy.ndarray[Any, Any]]

LARGEST_JSON = 256 * 2**20
ONLY = "values"
"""Name of the one array of a file that names none."""
FORMS = ".npz, .npy, .safetensors, .pt, .pth or .json"


def read(path: Path) -> Arrays:
    """All arrays of a file, by name.

    Raises:
        UnreadableInput: it is none of the forms, is damaged, or holds no numbers.
    """
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        found = _numpy(path)
    elif kind == ".safetensors":
        found = safetensors_file.values(path)
    elif kind in (".pt", ".pth"):
        found = torch_archive.values(path)
    elif kind == ".json":
        found = _json(path)
    else:
        raise UnreadableInput(f"cannot read {path}: save it as {FORMS}")
    if not found:
        raise UnreadableInput(f"{path} holds no tensors")
    return found


def _numpy(path: Path) -> Arrays:
    import numpy

    with open_regular(path) as file:
        try:
            loaded = numpy.load(file, allow_pickle=False)
            if isinstance(loaded, numpy.ndarray):
                return {ONLY: _numbers(loaded, path)}
            return {name: _numbers(loaded[name], path) for name in loaded.files}
        except (ValueError, EOFError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise UnreadableInput(f"{path} is not a whole numpy file ({error})") from error


def _json(path: Path) -> Arrays:
    try:
        loaded = json.loads(read_whole(path, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path} is not JSON ({error})") from error
    if isinstance(loaded, Mapping):
        return {str(name): array(value, path) for name, value in loaded.items()}
    return {ONLY: array(loaded, path)}


def array(value: Any, path: Path) -> Any:
    """Numbers in lists as one array; lists of different lengths one behind the other.

    Raises:
        UnreadableInput: there is something else than numbers.
    """
    import numpy

    try:
        return _numbers(numpy.asarray(value), path)
    except ValueError:
        parts = [numpy.ravel(array(item, path)) for item in value]
        return numpy.concatenate(parts) if parts else numpy.empty(0)


def _numbers(value: Any, path: Path) -> Any:
    if value.dtype.kind not in "biufc":
        raise UnreadableInput(f"{path} holds something else than numbers")
    return value
