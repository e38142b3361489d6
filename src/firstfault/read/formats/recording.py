"""Our own recordings: folders of segment files, one record a line.

recording/vm-4242/calls.0001.jsonl
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.earlier import tensors
from firstfault.read.events import Advance, Event, Problems
from firstfault.read.files import exists, open_regular, read_end, read_whole
from firstfault.read.formats import statistics_page
from firstfault.read.formats.values import DEEPEST, too_deep
from firstfault.record import codec, layout, schema

STATISTICS_LEVEL = 5
LONGEST_LINE = 64 * 2**20
"""A record's line beyond this many bytes is not one of ours."""
LARGEST_SESSION = 16 * 2**20
STDERR_BYTES = 64 * 2**10
_CONTAINERS = (b'"sequence"', b'"mapping"')


class Recording:
    """A recording folder, or the folder of one process of it."""

    kind = "recording"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self.segments = {folder.name: _segments(folder) for folder in process_folders(path)}
        self.size = sum(_size(segment) for segments in self.segments.values() for segment in segments)

    def events(self, advance: Advance) -> Iterator[Event]:
        """Every record, process after process."""
        for process, segments in self.segments.items():
            if segments[0] != layout.segment(segments[0].parent, 1):
                self.problems.add(f"{process}: the segments before {segments[0].name} are gone")
            folder = segments[0].parent
            statistics, deferred = Statistics(), Deferred(folder)
            for segment in segments:
                for record in deferred.joined(statistics.joined(read_segment(segment, self.problems, advance))):
                    yield Event(process, _located(record, folder))
            for record in deferred.joined(statistics.rest()):
                yield Event(process, _located(record, folder))

    def follow(self) -> Iterator[list[Event]]:
        """The records added since the last turn, each turn; whole lines only. It never ends by itself.

        Raises:
            UnreadableInput, OSError: the recording is gone, or a newer firstfault writes it.
        """
        tails: dict[Path, _Tail] = {}
        statistics: dict[str, tuple[Statistics, Deferred]] = {}
        while True:
            added: list[Event] = []
            for folder in process_folders(self.path):
                joining, deferred = statistics.setdefault(folder.name, (Statistics(), Deferred(folder)))
                segments = _segments(folder)
                for segment in segments:
                    if segment not in tails:
                        tails[segment] = _Tail(segment)
                    records = deferred.joined(joining.joined(tails[segment].records(self.problems)))
                    added += [Event(folder.name, _located(record, folder)) for record in records]
                    if segment != segments[-1]:
                        tails[segment].close()
            yield added

    def session(self) -> dict[str, object]:
        """What ``session.json`` says of the command; empty where there is none or it is unreadable."""
        path = self.path / layout.SESSION
        if not exists(path):
            return {}
        try:
            found = msgspec.json.decode(read_whole(path, LARGEST_SESSION))
        except (UnreadableInput, msgspec.DecodeError, RecursionError) as error:
            self.problems.add(f"{layout.SESSION} is unreadable: {error}")
            return {}
        if isinstance(found, dict):
            return found
        self.problems.add(f"{layout.SESSION} is unreadable: it is not an object")
        return {}

    def stderr_tail(self) -> str:
        """The end of what the command wrote to stderr; empty where it was not kept."""
        try:
            return read_end(self.path / layout.STDERR_TAIL, STDERR_BYTES).decode(errors="replace")
        except UnreadableInput:
            return ""


def process_folders(path: Path) -> list[Path]:
    """The folders of processes in a recording, or the folder itself if it is one.

    Raises:
        OSError: the folder cannot be listed.
    """
    if any(path.glob(layout.SEGMENTS)):
        return [path]
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and any(folder.glob(layout.SEGMENTS)))


def is_recording(path: Path) -> bool:
    """Whether a folder is a recording or a process of one.

    Raises:
        OSError: the folder cannot be listed.
    """
    return exists(path / layout.SESSION) or bool(process_folders(path))


def read_segment(path: Path, problems: Problems, advance: Advance) -> Iterator[codec.Record]:
    """The records of one segment; a torn or corrupt line is noted and passed over.

    Raises:
        UnreadableInput: a newer firstfault wrote it.
    """
    name = f"{path.parent.name}/{path.name}"
    try:
        file = open_regular(path)
    except UnreadableInput as error:
        problems.add(f"{name} was not read: {error}")
        return
    with file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            advance(len(line))
            whole = line.endswith(b"\n") or _skip_line(file, advance)
            if not whole:
                problems.add(f"{name} ends in a torn line; the rest was read")
            try:
                if line.strip():
                    yield _decoded(line, path)
            except codec.CodecError:
                if whole:
                    problems.add(f"{name} line {number} is not a record; the rest was read")
        if number == 0:
            problems.add(f"{name} is empty: its process died before it wrote the first line")


class Statistics:
    """Joins calls with the statistics of their arguments, which from level 5 on come as a record of their own.

    A call whose statistics never came, because reading them was what did not end, is given as it was.
    """

    def __init__(self) -> None:
        self._held: dict[int, schema.Call] = {}
        self._level = 0
        self._deferred = False

    def joined(self, records: Iterable[codec.Record]) -> Iterator[codec.Record]:
        """The records, each call only once its statistics have come or it has ended."""
        held = self._held
        for record in records:
            if isinstance(record, schema.Header):
                self._level, self._deferred = record.level, record.deferred
            if isinstance(record, schema.Call) and self._level >= STATISTICS_LEVEL and self._awaits_inputs(record):
                held[record.n] = record
                continue
            if isinstance(record, schema.Inputs):
                if (call := held.pop(record.n, None)) is not None:
                    call.args, call.kwargs = record.args, record.kwargs
                    yield call
                continue
            if isinstance(record, (schema.Return, schema.Raise, schema.Dump)) and record.n in held:
                yield held.pop(record.n)
            yield record

    def _awaits_inputs(self, record: schema.Call) -> bool:
        """Whether the arguments come once more: not where the device alone reads them, and later."""
        return not self._deferred or any(
            tensor.min is None and tensor.statistics is None
            for value in _values(record)
            for _, tensor in tensors("", value)
        )

    def rest(self) -> list[codec.Record]:
        """The calls that are still without, once there are no more records."""
        calls: list[codec.Record] = [*self._held.values()]
        self._held.clear()
        return calls


class Deferred:
    """Joins tensors with the statistics that the device wrote down by itself, whose place they have in a record.

    A tensor that the device did not get to is given as it was, so with the reason in the place of them.
    """

    def __init__(self, folder: Path) -> None:
        self._readings = statistics_page.Readings(folder)
        self._deferred = False

    def joined(self, records: Iterable[codec.Record]) -> Iterator[codec.Record]:
        """The records, with the statistics that there are by now."""
        self._readings.refresh()
        for record in records:
            if isinstance(record, schema.Header):
                self._deferred = record.deferred
            if self._deferred:
                for value in _values(record):
                    for _, tensor in tensors("", value):
                        self._fill(tensor)
            yield record

    def _fill(self, tensor: schema.Tensor) -> None:
        found = self._readings.find(tensor.token) if tensor.token else None
        if found is not None:
            tensor.statistics, tensor.token = None, 0
            tensor.min, tensor.max, tensor.mean, tensor.nan_count, tensor.inf_count = found


def _decoded(line: bytes, path: Path) -> codec.Record:
    """The record of one line.

    Raises:
        CodecError: it is not a whole record.
        UnreadableInput: a newer firstfault wrote it.
    """
    try:
        record = codec.decode(line)
    except codec.NewerSchema as error:
        raise UnreadableInput(f"{path}: {error}") from error
    except codec.CodecError:
        if (newer := _newer_schema(line)) is not None:
            raise UnreadableInput(
                f"{path}: written with record schema {newer}, newer than the {schema.SCHEMA_VERSION} known here; "
                "upgrade firstfault to read it"
            ) from None
        raise
    # Cheap for every line; only a line with that many containers can be nested too deep.
    if sum(line.count(name) for name in _CONTAINERS) > DEEPEST and too_deep(_values(record)):
        raise codec.CodecError("values nested deeper than any recorder describes them")
    return record


class _AnyHeader(msgspec.Struct, tag="header"):
    """What a header of any schema has."""

    schema: int


def _newer_schema(line: bytes) -> int | None:
    """The schema of a header that is none of ours because it is newer."""
    try:
        found = msgspec.json.decode(line, type=_AnyHeader).schema
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if found > schema.SCHEMA_VERSION else None


def _values(record: codec.Record) -> list[schema.Value]:
    """The values that a record carries."""
    if isinstance(record, (schema.Call, schema.Inputs)):
        return [*(record.args or ()), *(record.kwargs or {}).values()]
    return [record.out] if isinstance(record, schema.Return) else []


def _skip_line(file: BinaryIO, advance: Advance) -> bool:
    """Read to the end of a line; whether it has one before the file's."""
    while more := file.readline(LONGEST_LINE):
        advance(len(more))
        if more.endswith(b"\n"):
            return True
    return False


def _located(record: codec.Record, folder: Path) -> codec.Record:
    """A dump's path is kept relative to the folder of its process, wherever that lies now."""
    if isinstance(record, schema.Dump) and record.path:
        record.path = str(folder.absolute() / record.path)
    return record


class _Tail:
    """A segment that is still being written, read whole line by whole line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = open_regular(path)
        self._rest = b""

    def records(self, problems: Problems) -> Iterator[codec.Record]:
        """The records added since the last time."""
        while self._file is not None and (added := self._file.readline(LONGEST_LINE)):
            self._rest += added
            if not added.endswith(b"\n") and len(self._rest) < LONGEST_LINE:
                return
            line, self._rest = self._rest, b""
            try:
                yield _decoded(line, self._path)
            except codec.CodecError:
                problems.add(f"{self._path.parent.name}/{self._path.name} has a line that is not a record")

    def close(self) -> None:
        """Nothing more comes: another segment has begun."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(layout.SEGMENTS))


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
