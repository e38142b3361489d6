"""An input that was read once → a database beside it, which SQL and ``trace`` look things up in at once.

    recording/index-5f0c3a….duckdb          of a recording
    kernel_api.log.index-77ab12….duckdb     of a text log

The name tells what was read: which file it was, how long, and when it was last written to. So an index of what has
grown since is never taken for a current one, nor is one that came along with somebody else's recording, which might
hold anything. Where none can be written beside the input, it goes to the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstfault.errors import UnreadableInput, UsageError
from firstfault.read import index_rows
from firstfault.read.calls import Call, State
from firstfault.read.events import Advance, Replayed, Source
from firstfault.read.history import History
from firstfault.read.uncollected import uncollected
from firstfault.record import layout, schema

if TYPE_CHECKING:
    import duckdb

FORMAT = 2
"""Goes up with every change of the tables."""
SUFFIX = ".duckdb"
MOST_OPEN = 4096
_DIGEST = 24
_BUILD = {"memory_limit": "1GB", "autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
_QUERY = _BUILD | {"enable_external_access": "false", "lock_configuration": "true"}


def find(source: Source) -> Path | None:
    """The index of an input as it is now, if there is one that this user has made."""
    return next(filter(_is_own, _places(source)), None)


def current(source: Source, advance: Advance) -> Path:
    """The index of an input as it is now; made if there is none, in the place of older ones.

    Raises:
        UnreadableInput: the input holds what no index can, or the index can be written nowhere.
        UsageError: DuckDB is not installed.
    """
    if (found := find(source)) is not None:
        return found
    duckdb = _duckdb()
    for place in _places(source):
        try:
            place.parent.mkdir(mode=layout.PRIVATE_FOLDER, parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(prefix=".index-", dir=place.parent)
        except OSError:
            continue
        with scratch as folder:
            made = Path(folder) / place.name
            try:
                _build(source, made, advance)
            except (duckdb.Error, OverflowError) as error:
                raise UnreadableInput(f"cannot make an index of {source.path}: {_first_line(error)}") from error
            made.chmod(layout.PRIVATE_FILE)
            made.replace(place)
        _remove_others(place)
        return place
    raise UnreadableInput(f"cannot make an index of {source.path}: neither its folder nor the cache can be written to")


def connect(index: Path) -> duckdb.DuckDBPyConnection:
    """An index, opened for reading: what runs in it can reach no other file.

    Raises:
        UsageError: DuckDB is not installed.
        UnreadableInput: it is damaged.
    """
    duckdb = _duckdb()
    try:
        return duckdb.connect(index, read_only=True, config=_QUERY)  # type: ignore[no-any-return]
    except duckdb.Error as error:
        raise UnreadableInput(f"cannot read {index}: {_first_line(error)}; remove it") from error


class Answer:
    """What a query gave: the names of its columns, and its rows one by one."""

    def __init__(self, index: Path, sql: str) -> None:
        """Run the query.

        Raises:
            UsageError: it is no query that the tables can answer.
        """
        self._duckdb = _duckdb()
        self._connection = connect(index)
        self.problems = [str(row[0]) for row in self._connection.execute("SELECT message FROM problems").fetchall()]
        try:
            self._connection.execute(sql)
        except self._duckdb.Error as error:
            raise UsageError(f"cannot answer that: {_first_line(error)}") from error
        self.columns = [str(column[0]) for column in self._connection.description or ()]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows.

        Raises:
            UsageError: a value of one cannot be reckoned.
        """
        while self.columns:
            try:
                some = self._connection.fetchmany(1000)
            except self._duckdb.Error as error:
                raise UsageError(f"cannot answer that: {_first_line(error)}") from error
            if not some:
                return
            yield from some


def _places(source: Source) -> Iterator[Path]:
    """Where the index of an input as it is now may lie: beside it, else in the cache."""
    path = source.path.resolve()
    state = [FORMAT, os.geteuid(), *((str(file), *_stamp(file)) for file in _files(path))]
    digest = hashlib.sha256(repr(state).encode()).hexdigest()[:_DIGEST]
    name = f"index-{digest}{SUFFIX}"
    yield path / name if path.is_dir() else path.with_name(f"{path.name}.{name}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firstfault"
    whose = hashlib.sha256(os.fsencode(path)).hexdigest()[:_DIGEST]
    yield cache / f"{whose}.{name}"


def _files(path: Path) -> list[Path]:
    """The files that an input is read from."""
    if path.is_file():
        return [path]
    patterns = [f"{within}{name}" for within in ("", "*/") for name in (layout.SEGMENTS, layout.STATISTICS)]
    segments = sorted(file for pattern in patterns for file in path.glob(pattern))
    return segments or sorted(path.rglob(f"*{layout.METADATA}"))


def _stamp(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_own(index: Path) -> bool:
    """Whether an index was made by this user and for nobody else."""
    try:
        found = index.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _remove_others(place: Path) -> None:
    """Older indexes of the same input."""
    before, _, _ = place.name.rpartition("index-")
    for other in place.parent.iterdir():
        digest = other.name.removeprefix(f"{before}index-").removesuffix(SUFFIX)
        if other.name == f"{before}index-{digest}{SUFFIX}" and len(digest) == _DIGEST and other != place:
            other.unlink(missing_ok=True)


def _build(source: Source, place: Path, advance: Advance) -> None:
    with uncollected(), _duckdb().connect(place, config=_BUILD) as connection:
        tables = index_rows.Tables(connection, str(place.parent))
        _fill(tables, source, advance)
        tables.close(source.problems.lines())


def _fill(tables: index_rows.Tables, source: Source, advance: Advance) -> None:
    """The rows of all calls of an input, each once it has ended; those that have not at the end."""
    history = History(learns=False)
    begun: dict[tuple[str, int], Call] = {}
    for event in source.events(advance):
        ended = history.feed(event)
        record = event.record
        if isinstance(record, schema.Call):
            begun[event.process, record.n] = history.processes[event.process].by_number[record.n]
            if len(begun) > MOST_OPEN:
                _add_lost(tables, begun)
        elif ended is not None:
            begun.pop((event.process, ended.n), None)
            tables.call(ended)
        elif isinstance(record, Replayed):
            tables.replay(event.process, record)
        elif isinstance(record, schema.Note):
            tables.note(event.process, record)
    for call in begun.values():
        tables.call(call)


def _add_lost(tables: index_rows.Tables, begun: dict[tuple[str, int], Call]) -> None:
    """The rows of calls whose end is known not to come any more."""
    for key in [key for key, call in begun.items() if call.state is not State.IN_FLIGHT]:
        tables.call(begun.pop(key))


def _duckdb() -> Any:
    """DuckDB, which is imported only where it is needed: it takes longer than a report on a small recording."""
    try:
        import duckdb
    except ImportError as error:
        raise UsageError("this needs DuckDB, which is not installed: pip install duckdb") from error
    return duckdb


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
