"""Our own recordings: folders of segment files, one record a line.

recording/vm-4242/calls.0001.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.events import Advance, Event, Problems, Replayed
from firstfault.read.files import exists, open_regular, read_end, read_whole
from firstfault.read.formats.joins import Joins, values_of
from firstfault.read.formats.values import DEEPEST, too_deep
from firstfault.record import codec, layout, schema

LONGEST_LINE = 64 * 2**20
"""A record's line beyond this many bytes is not one of ours."""
LARGEST_SESSION = 16 * 2**20
STDERR_BYTES = 64 * 2**10


class Recording:
    """A recording folder, or the folder of one process of it."""

    kind = "recording"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self.segments = {folder.name: _segments(folder) for folder in process_folders(path)}

    def events(self, advance: Advance) -> Iterator[Event]:
        """Every record, process after process."""
        for process, segments in self.segments.items():
            folder = segments[0].parent
            joins = Joins(folder, self.problems)
            yield from (Event(process, contract) for contract in contracts(folder, self.problems))
            for segment in segments:
                for record in joins.joined(read_segment(segment, self.problems, advance)):
                    if isinstance(record, schema.Header):
                        self._check_start(process, record, segment == segments[0])
                    yield Event(process, _located(record, folder))
            for record in joins.rest():
                yield Event(process, _located(record, folder))

    def _check_start(self, process: str, header: schema.Header, first: bool) -> None:
        """Note that segments are missing before the first, unless their record is a ring, which drops them."""
        if first and header.segment > 1 and not header.ring:
            name = layout.segment(self.path, header.segment).name
            self.problems.add(f"{process}: the segments before {name} are gone")

    def follow(self) -> Iterator[list[Event]]:
        """The records added since the last turn, each turn; whole lines only. It never ends by itself.

        Raises:
            UnreadableInput, OSError: the recording is gone, or a newer firstfault writes it.
        """
        tails: dict[Path, _Tail] = {}
        joins: dict[str, Joins] = {}
        while True:
            added: list[Event] = []
            for folder in process_folders(self.path):
                joining = joins.setdefault(folder.name, Joins(folder, self.problems))
                segments = _segments(folder)
                for segment in segments:
                    if segment not in tails:
                        try:
                            tails[segment] = _Tail(segment)
                        except UnreadableInput:  # a ring has just dropped it
                            if exists(segment):
                                raise
                            continue
                    records = joining.joined(tails[segment].records(self.problems))
                    added += [Event(folder.name, _located(record, folder)) for record in records]
                    if segment != segments[-1]:
                        tails[segment].close()
            for gone in [segment for segment in tails if not exists(segment)]:
                tails.pop(gone).close()
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


def contracts(folder: Path, problems: Problems) -> list[schema.Contract]:
    """What the process of a folder declared of the operators that it has called."""
    path = folder / layout.CONTRACTS
    if not exists(path):
        return []
    every = read_segment(path, problems, lambda count: None)
    return [record for record in every if isinstance(record, schema.Contract)]


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
            line = line.partition(b"\0")[0]  # what a ring's process did not come to use, or was just about to write
            if not line:
                break
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
            raise UnreadableInput(f"{path}: {codec.NewerSchema(newer)}") from None
        raise
    # Cheap for every line; only a line with that many containers can be nested too deep.
    if line.count(b'"sequence"') + line.count(b'"mapping"') > DEEPEST and too_deep(values_of(record)):
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


def _skip_line(file: BinaryIO, advance: Advance) -> bool:
    """Read to the end of a line; whether it has one before the file's."""
    while more := file.readline(LONGEST_LINE):
        advance(len(more))
        if more.endswith(b"\n"):
            return True
    return False


def _located(record: codec.Record | Replayed, folder: Path) -> codec.Record | Replayed:
    """A dump's path is kept relative to the folder of its process, wherever that lies now."""
    if isinstance(record, Replayed):
        return record._replace(dump=str(folder.absolute() / record.dump)) if record.dump else record
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
            if b"\0" in added:  # not written yet, in a ring: to be read anew the next time
                written = added.partition(b"\0")[0]
                self._reopen(self._file.tell() - len(added) + len(written))
                added = written
            self._rest += added
            if not added.endswith(b"\n") and len(self._rest) < LONGEST_LINE:
                return
            line, self._rest = self._rest, b""
            try:
                yield _decoded(line, self._path)
            except codec.CodecError:
                problems.add(f"{self._path.parent.name}/{self._path.name} has a line that is not a record")

    def _reopen(self, at: int) -> None:
        """Read on from ``at``, without what has been buffered."""
        self.close()
        self._file = open_regular(self._path)
        self._file.seek(at)

    def close(self) -> None:
        """Nothing more comes: another segment has begun."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(layout.SEGMENTS))
