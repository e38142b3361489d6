"""Dump folders of level 10: SGLang's, FlashInfer's and ours; one, or a folder of many.

    dumps/20260319_004821_182_pid919286_RotaryEmbedding.forward_call0001/{inputs.pt,metadata.json}

A dump becomes a call, its arguments, and its return or exception. One without outputs was in flight when
its process died. What FlashInfer saved at each replay of a CUDA graph is a call of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read import earlier
from firstfault.read.events import Advance, Event, Problems
from firstfault.read.files import exists, read_whole
from firstfault.read.formats import dump_values, safetensors_file, torch_archive
from firstfault.read.formats.kernel_api_log import FLASHINFER, forget_lost
from firstfault.read.formats.saved_tensor import SavedTensor
from firstfault.read.tensors import saved_inputs, tensors
from firstfault.record import layout, partial, schema
from firstfault.record.plain import plain_text

FLASHINFER_METADATA = "metadata.jsonl"
GRAPH_FLUSHES = "graph_flushes"
LARGEST_METADATA = 32 * 2**20
TARGET = "dump"
MOST_NAMED = 8
_SIDES = {"inputs": layout.INPUTS, "outputs": layout.OUTPUTS}
_MOST_OPEN = 256


def is_dump(path: Path) -> bool:
    """Whether a folder is one dump."""
    names = (layout.METADATA, FLASHINFER_METADATA, layout.INPUTS, "inputs.safetensors")
    return layout.parse_dump_name(path.name) is not None or any(exists(path / name) for name in names)


def dumps_in(path: Path) -> list[Path]:
    """The dumps in a folder, oldest first, or the folder itself if it is one.

    Raises:
        OSError: the folder cannot be listed.
    """
    if is_dump(path):
        return _replays(path)
    folders = [folder for folder in path.iterdir() if folder.is_dir() and is_dump(folder)]
    return sorted((dump for folder in folders for dump in _replays(folder)), key=_age)


def _replays(dump: Path) -> list[Path]:
    """The snapshots of a call that a CUDA graph replayed, instead of the copy of the last; else the dump itself."""
    flushes = dump / GRAPH_FLUSHES
    found = sorted(folder for folder in flushes.iterdir() if folder.is_dir()) if flushes.is_dir() else []
    return found or [dump]


def _age(dump: Path) -> tuple[str, str]:
    """Replays come after what ran before them."""
    return (dump.name, dump.parent.parent.name) if dump.parent.name == GRAPH_FLUSHES else ("", dump.name)


@dataclass
class Dump:
    """One dump's metadata, whoever wrote it."""

    folder: Path
    metadata: dict[str, Any]

    def __post_init__(self) -> None:
        named = self.folder.parent.parent if self.folder.parent.name == GRAPH_FLUSHES else self.folder
        self._named = layout.parse_dump_name(named.name) or ("", 0, named.name, 0)

    @property
    def op(self) -> str:
        """The operator's name."""
        return plain_text(str(self.metadata.get("function_name") or self._named[2]))

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.number("process_id", self._named[1])

    @property
    def time(self) -> int:
        """When the call began, in nanoseconds since the epoch."""
        return _nanoseconds(str(self.metadata.get("timestamp") or self._named[0]))

    @property
    def is_flashinfer(self) -> bool:
        """Whether FlashInfer wrote it."""
        return "tensor_info" in self.metadata or exists(self.folder / FLASHINFER_METADATA)

    @property
    def completed(self) -> bool:
        """Whether the call came back; under graph capture FlashInfer only counts the outputs then."""
        info = self.metadata.get("tensor_info")
        counted = isinstance(info, dict) and "output_size_bytes" in info
        return self.metadata.get("execution_status") == "completed" or counted

    def number(self, name: str, default: int) -> int:
        """A whole number that other records can refer to."""
        found = self.metadata.get(name)
        return found if type(found) is int and 0 <= found < 2**63 else default


class DumpFolder:
    """One dump or many."""

    kind = "dump"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self._folders = self._find()
        self._open: dict[tuple[int, int], list[tuple[int, str]]] = {}

    def events(self, advance: Advance) -> Iterator[Event]:
        """Each dump as a call and what became of it."""
        for index, dump in enumerate(self._in_order(), 1):
            advance(1)
            for record in self._records(dump, index):
                yield Event(f"pid {dump.pid}", record)

    def _in_order(self) -> Iterator[Dump]:
        """The dumps in the order of their calls; those of one millisecond by number, as far as they have one."""
        every = (Dump(folder, self.metadata(folder)) for folder in self._folders)
        for _, alike in groupby(every, key=lambda dump: (dump.pid, dump.time)):
            yield from sorted(alike, key=lambda dump: dump.number("call_number", 0))

    def _find(self) -> list[Path]:
        """The folders of the dumps, in the order of their calls."""
        return dumps_in(self.path)

    def _records(self, dump: Dump, index: int) -> Iterator[schema.Record]:
        call = self._call(dump, index)
        yield call
        yield schema.Dump(call.n, "inputs", str(dump.folder))
        exception = dump.metadata.get("exception")
        if isinstance(exception, dict):
            self._close(dump, call)
            kind, message = (plain_text(str(exception.get(name, ""))) for name in ("type", "message"))
            yield schema.Raise(call.n, 0, kind, message)
        elif dump.completed:
            self._close(dump, call)
            out = dump_values.result(dump.metadata, self.saved(dump.folder, "outputs"))
            yield schema.Return(call.n, 0, described=True, out=out, mutated=_mutated(dump, call))
        elif not dump.metadata:
            self.problems.add(f"{dump.folder.name} is half-written: it has no metadata")

    def _call(self, dump: Dump, index: int) -> schema.Call:
        n, tid = dump.number("call_number", index), dump.number("thread_id", 0)
        args, kwargs = dump_values.arguments(dump.metadata, self.saved(dump.folder, "inputs"))
        target = FLASHINFER if dump.is_flashinfer else TARGET
        stack = self._open.setdefault((dump.pid, tid), [])
        if target == FLASHINFER:
            forget_lost(stack, dump.op)
        parent = stack[-1][0] if stack else 0
        stack.append((n, dump.op))
        del stack[:-_MOST_OPEN]
        return schema.Call(n, dump.time, dump.op, target, parent, tid, args=args, kwargs=kwargs)

    def _close(self, dump: Dump, call: schema.Call) -> None:
        self._open[dump.pid, call.tid].remove((call.n, call.op))

    def saved(self, folder: Path, side: str) -> dict[str, SavedTensor]:
        """The tensors of one side, ``inputs`` or ``outputs``, by key."""
        try:
            if exists(folder / _SIDES[side]):
                saved = torch_archive.read(folder / _SIDES[side])
                for key in saved.others[:MOST_NAMED]:
                    self.problems.add(f"{folder / _SIDES[side]}: {key} is no tensor that can be described")
                return saved.tensors
            if exists(folder / f"{side}.safetensors"):
                return safetensors_file.read(folder / f"{side}.safetensors")
        except UnreadableInput as error:
            self.problems.add(str(error))
        return {}

    def metadata(self, folder: Path) -> dict[str, Any]:
        """What the metadata of a dump says; empty where there is none that can be read."""
        for name, decode in ((layout.METADATA, decoded), (FLASHINFER_METADATA, _last_line)):
            if not exists(folder / name):
                continue
            try:
                found = decode(read_whole(folder / name, LARGEST_METADATA))
            except (UnreadableInput, ValueError, RecursionError, MemoryError) as error:
                self.problems.add(f"{folder.name}/{name} is damaged ({error})")
                continue
            if isinstance(found, dict):
                return found
            self.problems.add(f"{folder.name}/{name} is damaged (it is not an object)")
        return {}


def _mutated(dump: Dump, call: schema.Call) -> list[str]:
    """The arguments that a call changed, called what a recording calls them: ``arg[0][1]`` for ``mutated_arg_0_1``."""
    keys = dump.metadata.get("mutated_tensor_keys")
    if not isinstance(keys, list):
        return []
    labels = (label for name, value in earlier.inputs(call) for label, _ in tensors(name, value))
    named = dict(zip((key for key, _ in saved_inputs(call)), labels, strict=True))
    saved = [plain_text(str(key)).removeprefix("mutated_") for key in keys]
    return [named.get(key, key) for key in saved]


def partial_of(dump: Path) -> dict[str, partial.Partial]:
    """By key, what a dump holds of the tensors that it does not hold whole; empty where its metadata cannot be read."""
    try:
        metadata = decoded(read_whole(dump / layout.METADATA, LARGEST_METADATA))
    except (UnreadableInput, OSError, ValueError, RecursionError, MemoryError):
        return {}
    return partial.decoded(metadata.get("partial")) if isinstance(metadata, dict) else {}


def decoded(data: bytes) -> object:
    """Metadata as JSON, or as Python writes it.

    Raises:
        ValueError, RecursionError: it is neither.
    """
    try:
        found: object = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)  # Python writes NaN and Infinity, which are no JSON
    return found


def _last_line(data: bytes) -> object:
    """FlashInfer appends the state of a call as it changes; the last whole line is the newest."""
    for line in reversed(data.splitlines()):
        try:
            return decoded(line)
        except ValueError:
            continue
    raise ValueError("no whole line in it")


def _nanoseconds(stamp: str) -> int:
    """``20260319_004821_182`` in local time, as nanoseconds since the epoch."""
    try:
        moment = datetime.strptime(stamp[:15], "%Y%m%d_%H%M%S")
        return int(moment.timestamp()) * 10**9 + int(stamp[16:19] or 0) * 10**6
    except (ValueError, OverflowError):
        return 0
