"""What a recording holds, told from the ends of its files: a long one takes minutes to read.

summary(folder)  →  Summary(calls=11069, processes=1, gaps=["vllm: …"])
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from firstfault.read.files import open_regular
from firstfault.read.formats.recording import process_folders
from firstfault.read.unseen import unseen
from firstfault.record import codec, layout, schema

TAIL = 2**18
"""Bytes; at its end a process writes how its targets stand, and what it did not see."""


@dataclass
class Summary:
    """A recording in numbers.

    Attributes:
        calls: of the processes that ended by themselves, and of the others up to the last that they wrote.
        processes: those that left a folder.
        cut_off: those among them that did not say that they ended.
        gaps: what is known not to have been seen, one sentence each.
    """

    calls: int = 0
    processes: int = 0
    cut_off: int = 0
    gaps: list[str] = field(default_factory=list)


def summary(recording: Path) -> Summary:
    """Sum up a recording."""
    found = Summary(gaps=unseen(recording))
    for folder in process_folders(recording):
        found.processes += 1
        ended, calls = False, 0
        for record in _last_records(folder):
            if isinstance(record, schema.End):
                ended, calls = True, record.calls
            elif isinstance(record, (schema.Call, schema.Return, schema.Raise)):
                calls = max(calls, record.n)
            elif isinstance(record, schema.Target) and record.gap:
                found.gaps.append(f"{record.name}: {record.gap}")
            elif isinstance(record, schema.Note):
                found.gaps.append(record.message)
        found.calls += calls
        found.cut_off += not ended
    found.gaps = list(dict.fromkeys(found.gaps))
    return found


def _written(file: BinaryIO) -> int:
    """How many bytes of a segment have been written: a ring lays all of it out beforehand, as zeros."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while low < high:
        middle = (low + high + 1) // 2
        file.seek(middle - 1)
        low, high = (low, middle - 1) if file.read(1) == b"\0" else (middle, high)
    return low


def _last_records(folder: Path) -> list[codec.Record]:
    segments = sorted(folder.glob(layout.SEGMENTS))
    if not segments:
        return []
    try:
        with open_regular(segments[-1]) as file:
            size = _written(file)
            file.seek(max(0, size - TAIL))
            lines = file.read(min(size, TAIL)).splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            records.append(codec.decode(line))
        except codec.CodecError:
            continue
    return records
