"""What a recording holds, told from the ends of its files: a long one takes minutes to read.

summary(folder)  →  Summary(calls=11069, processes=1, gaps=["vllm: …"])
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

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
        calls: of the processes that ended by themselves.
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
        ended = False
        for record in _last_records(folder):
            if isinstance(record, schema.End):
                ended, found.calls = True, found.calls + record.calls
            elif isinstance(record, schema.Target) and record.gap:
                found.gaps.append(f"{record.name}: {record.gap}")
            elif isinstance(record, schema.Note):
                found.gaps.append(record.message)
        found.cut_off += not ended
    found.gaps = list(dict.fromkeys(found.gaps))
    return found


def _last_records(folder: Path) -> list[codec.Record]:
    segments = sorted(folder.glob(layout.SEGMENTS))
    if not segments:
        return []
    try:
        with open_regular(segments[-1]) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL).splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            records.append(codec.decode(line))
        except codec.CodecError:
            continue
    return records
