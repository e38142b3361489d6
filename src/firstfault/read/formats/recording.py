"""Our own recordings: folders of segment files, one record a line.

recording/vm-4242/calls.0001.jsonl
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.events import Advance, Event, Problems
from firstfault.record import codec, layout, schema

STATISTICS_LEVEL = 5
LONGEST_LINE = 64 * 2**20
"""A record's line beyond this many bytes is not one of ours."""


class Recording:
    """A recording folder, or the folder of one process of it."""

    kind = "recording"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self.segments = {folder.name: _segments(folder) for folder in process_folders(path)}
        self.size = sum(segment.stat().st_size for segments in self.segments.values() for segment in segments)

    def events(self, advance: Advance) -> Iterator[Event]:
        """Every record, process after process."""
        for process, segments in self.segments.items():
            if segments[0] != layout.segment(segments[0].parent, 1):
                self.problems.add(f"{process}: the segments before {segments[0].name} are gone")
            records = (record for segment in segments for record in read_segment(segment, self.problems, advance))
            for record in with_statistics(records):
                yield Event(process, record)

    def follow(self) -> Iterator[list[Event]]:
        """The records added since the last turn, each turn; whole lines only. It never ends by itself."""
        tails: dict[Path, _Tail] = {}
        while True:
            added: list[Event] = []
            for folder in process_folders(self.path):
                for segment in _segments(folder):
                    tail = tails.setdefault(segment, _Tail(segment))
                    records = with_statistics(tail.records(self.problems))
                    added += [Event(folder.name, record) for record in records]
            yield added

    def session(self) -> dict[str, object]:
        """What ``session.json`` says of the command; empty where there is none or it is unreadable."""
        try:
            found = msgspec.json.decode((self.path / layout.SESSION).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            self.problems.add(f"{layout.SESSION} is unreadable: {error}")
            return {}
        return found if isinstance(found, dict) else {}

    def stderr_tail(self) -> str:
        """The end of what the command wrote to stderr; empty where it was not kept."""
        try:
            return (self.path / layout.STDERR_TAIL).read_text(errors="replace")
        except OSError:
            return ""


def process_folders(path: Path) -> list[Path]:
    """The folders of processes in a recording, or the folder itself if it is one."""
    if any(path.glob(layout.SEGMENTS)):
        return [path]
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and any(folder.glob(layout.SEGMENTS)))


def is_recording(path: Path) -> bool:
    """Whether a folder is a recording or a process of one."""
    return (path / layout.SESSION).exists() or bool(process_folders(path))


def read_segment(path: Path, problems: Problems, advance: Advance) -> Iterator[codec.Record]:
    """The records of one segment; a torn or corrupt line is noted and passed over.

    Raises:
        UnreadableInput: a newer firstfault wrote it.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            advance(len(line))
            if not line.strip():
                continue
            try:
                yield codec.decode(line)
            except codec.NewerSchema as error:
                raise UnreadableInput(f"{path}: {error}") from error
            except codec.CodecError:
                torn = "ends in a torn line" if not line.endswith(b"\n") else f"line {number} is not a record"
                problems.add(f"{path.parent.name}/{path.name} {torn}; the rest was read")


def with_statistics(records: Iterable[codec.Record]) -> Iterator[codec.Record]:
    """Calls with the statistics of their arguments, which from level 5 on come as a record of their own.

    A call whose statistics never came, because reading them was what did not end, is given as it was.
    """
    held: dict[int, schema.Call] = {}
    level = 0
    for record in records:
        if isinstance(record, schema.Header):
            level = record.level
        if isinstance(record, schema.Call) and level >= STATISTICS_LEVEL:
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
    yield from held.values()


class _Tail:
    """A segment that is still being written, read whole line by whole line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def records(self, problems: Problems) -> Iterator[codec.Record]:
        """The records added since the last time."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in filter(None, lines):
            try:
                yield codec.decode(line)
            except codec.CodecError:
                problems.add(f"{self._file.name} has a line that is not a record")


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(layout.SEGMENTS))
