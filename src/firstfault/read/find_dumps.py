"""DUMP or RECORDING, with the number of a call → the folders of the dumps that are meant.

find(Path("recording"), calls=(5, 6))  →  [Path("recording/vm-1/dumps/…_topk_call0005"), …]
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from firstfault.errors import UsageError
from firstfault.read.files import is_regular
from firstfault.read.saved_call import folder_of
from firstfault.read.session import open_source
from firstfault.record import layout, schema

MOST_NAMED = 8


class Found(NamedTuple):
    """One dump: of which process and call."""

    process: str
    n: int
    op: str
    folder: Path


def find(path: Path, first: int | None, last: int | None, process: str | None) -> list[Found]:
    """The dumps of some calls, in their order; of a call with several (replays of a CUDA graph), the last.

    Args:
        path: a dump, or a recording or folder with several.
        first, last: the numbers of the calls, both included; None for the only one that there is.
        process: which process, where there are several.

    Raises:
        UsageError: there is none, or which is meant is not said.
        UnreadableInput: nothing in it can be read.
    """
    alone = folder_of(path)
    if alone is not None and first is None:
        return [Found("", 0, "", alone)]
    found = [dump for dump in every(path) if process in (None, dump.process)]
    if not found:
        of = f" of process {process}" if process else ""
        raise UsageError(f"{path} holds no dump{of}; record with --level 10")
    wanted = found if first is None else [dump for dump in found if first <= dump.n <= (last or first)]
    if not wanted:
        raise UsageError(f"{path} has no dump of call {_range(first, last)}; it has those of {_numbers(found)}")
    if len({dump.process for dump in wanted}) > 1:
        names = ", ".join(dict.fromkeys(dump.process for dump in wanted))
        raise UsageError(f"{path} holds dumps of several processes, {names}; say which with --process")
    if first is None and len(wanted) > 1:
        raise UsageError(f"{path} holds {len(wanted)} dumps, of the calls {_numbers(wanted)}; say which with --call")
    return [*{dump.n: dump for dump in wanted}.values()]


def every(path: Path) -> list[Found]:
    """All dumps of a source, in the order of their calls.

    Raises:
        UnreadableInput: nothing in it can be read.
    """
    ops: dict[tuple[str, int], str] = {}
    found = []
    for event in open_source(path).events(lambda count: None):
        record = event.record
        if isinstance(record, schema.Call):
            ops[event.process, record.n] = record.op
        elif isinstance(record, schema.Dump) and record.side == "inputs" and not record.skipped and record.path:
            folder = located(Path(record.path), path, event.process)
            if folder is not None:
                found.append(Found(event.process, record.n, ops.get((event.process, record.n), ""), folder))
    return sorted(found, key=lambda dump: (dump.process, dump.n))


def located(folder: Path, source: Path, process: str) -> Path | None:
    """Where a dump lies: as the record says, or in the recording wherever that is now; None if it is gone."""
    places = (folder, source / process / layout.DUMPS / folder.name, source.parent / folder.name)
    names = (layout.METADATA, "metadata.jsonl")
    return next((place for place in places if any(is_regular(place / name) for name in names)), None)


def _range(first: int | None, last: int | None) -> str:
    return f"{first}" if last in (None, first) else f"{first} to {last}"


def _numbers(found: list[Found]) -> str:
    numbers = [str(dump.n) for dump in found]
    return ", ".join(numbers[:MOST_NAMED]) + (", …" if len(numbers) > MOST_NAMED else "")
