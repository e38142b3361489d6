"""Inputs that lie elsewhere → a private copy of them, gone when the process ends.

fetched("s3://incidents/tuesday/recording")  →  Path("/tmp/firstfault-8f3c…/recording")

Through fsspec, so from wherever it has a filesystem for: S3, GCS, Azure, HDFS, HTTP, SSH, archives. What is read is
the copy, for a record is read from several places at once; dumps are copied as far as there is room for them.
"""

from __future__ import annotations

import re
import tempfile
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from firstfault.errors import UnreadableInput, UsageError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}://|[A-Za-z][A-Za-z0-9+.-]{0,40}::")
"""How an address begins that is no path of this machine; fsspec chains others with two colons."""
MOST_BYTES = 8 * 2**30
MOST_FILES = 100_000
_AT_ONCE = 2**22
_VALUES = (".pt", ".safetensors")
"""What holds the values of dumps: copied last, and left out where there is no room."""
_INDEX = ".duckdb"
"""Somebody's index of it, which would not be believed here."""
_SECRET = re.compile(r"(?<=://)[^/@\s]+@")
_copies: dict[Path, str] = {}
_folders: list[tempfile.TemporaryDirectory[str]] = []


class Copied(NamedTuple):
    """A copy: where it lies, of what, how many files and bytes it has, and how many dumps there was no room for."""

    path: Path
    name: str
    files: int
    nbytes: int
    left_out: int


class _Entry(NamedTuple):
    name: str
    size: int
    place: PurePosixPath


def is_remote(text: str) -> bool:
    """Whether a text is an address rather than a path."""
    return URL.match(text) is not None


def named(path: Path) -> str:
    """What to call a path: of a copy the address that it was made from, without passwords."""
    return _copies.get(path, str(path))


def fetched(address: str, most: int = MOST_BYTES) -> Copied:
    """Copy what lies at an address, a file or a folder, into a folder that its owner alone can read.

    Raises:
        UsageError: fsspec, or what it needs for this kind of address, is not installed.
        UnreadableInput: it cannot be reached, or is too large.
    """
    shown = _SECRET.sub("", address)
    files = _opened(address, shown)
    folder = tempfile.TemporaryDirectory(prefix="firstfault-")  # private by itself
    _folders.append(folder)
    try:
        entries, root = _entries(files[0], files[1], shown)
        copied = _copy(files[0], entries, Path(folder.name), most, shown)
    except UnreadableInput:
        raise
    except Exception as error:  # each filesystem has errors of its own
        raise UnreadableInput(f"cannot read {shown}: {_line(error)}") from error
    path = Path(folder.name) / root
    _copies[path] = shown
    return copied._replace(path=path)


def _opened(address: str, shown: str) -> tuple[Any, str]:
    """The filesystem of an address, and the path in it."""
    try:
        core: Any = import_module("fsspec.core")
    except ImportError as error:
        raise UsageError(f"reading {shown} needs fsspec, which is not installed: pip install fsspec") from error
    try:
        found: tuple[Any, str] = core.url_to_fs(address)
    except ImportError as error:
        raise UsageError(f"reading {shown} needs more than fsspec: {_line(error)}") from error
    except Exception as error:
        raise UnreadableInput(f"cannot read {shown}: {_line(error)}") from error
    return found


def _entries(filesystem: Any, path: str, shown: str) -> tuple[list[_Entry], str]:
    """The files at a path, by where they are to lie in the copy, and the name of its root."""
    root = PurePosixPath(path.rstrip("/")).name or "input"
    if filesystem.isfile(path):
        return [_Entry(path, int(filesystem.info(path).get("size") or 0), PurePosixPath(root))], root
    found: dict[str, dict[str, Any]] = filesystem.find(path, detail=True)
    if not found:
        raise UnreadableInput(f"nothing lies at {shown}")
    if len(found) > MOST_FILES:
        raise UnreadableInput(f"{shown} holds {len(found)} files, more than the {MOST_FILES} that are copied")
    base = filesystem._strip_protocol(path).rstrip("/")
    entries = []
    for name, info in found.items():
        inside = PurePosixPath(filesystem._strip_protocol(name).removeprefix(base).lstrip("/"))
        if inside.is_absolute() or ".." in inside.parts or not inside.parts:
            raise UnreadableInput(f"{shown} holds a file whose name leads out of it")
        if inside.suffix == _INDEX:
            continue
        entries.append(_Entry(name, int(info.get("size") or 0), PurePosixPath(root) / inside))
    return entries, root


def _copy(filesystem: Any, entries: list[_Entry], folder: Path, most: int, shown: str) -> Copied:
    """Copy files, the values of dumps last."""
    files = nbytes = left_out = 0
    for entry in sorted(entries, key=lambda entry: (entry.place.suffix in _VALUES, entry.place)):
        if entry.place.suffix in _VALUES and nbytes + entry.size > most:
            left_out += 1
            continue
        place = folder / entry.place
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        nbytes += _one(filesystem, entry, place, most - nbytes, shown)
        files += 1
    return Copied(folder, shown, files, nbytes, left_out)


def _one(filesystem: Any, entry: _Entry, place: Path, room: int, shown: str) -> int:
    """Copy a file; how many bytes it had, which its filesystem may have been wrong about."""
    copied = 0
    with filesystem.open(entry.name, "rb") as source, place.open("wb") as file:
        place.chmod(0o600)
        while data := source.read(_AT_ONCE):
            copied += len(data)
            if copied > room:
                raise UnreadableInput(f"{shown} is larger than what is copied; copy what is needed here yourself")
            file.write(data)
    return copied


def _line(error: Exception) -> str:
    """What went wrong, in one line."""
    text = _SECRET.sub("", str(error)).strip().partition("\n")[0]
    return text or type(error).__name__
