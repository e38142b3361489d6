"""Dump folders of level 10: SGLang's, FlashInfer's and ours; one, or a folder of many.

    dumps/20260319_004821_182_pid919286_RotaryEmbedding.forward_call0001/{inputs.pt,metadata.json}

A dump becomes a call, its arguments, and its return or exception. One without outputs was in flight when
its process died.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.events import Advance, Event, Problems
from firstfault.read.formats import torch_archive
from firstfault.record import layout, schema

FLASHINFER_METADATA = "metadata.jsonl"
LARGEST_METADATA = 64 * 2**20
_KEY = re.compile(r"(arg|kwarg)_(\w+?)(?:__.*)?")


def is_dump(path: Path) -> bool:
    """Whether a folder is one dump."""
    names = (layout.METADATA, FLASHINFER_METADATA, layout.INPUTS)
    return any((path / name).exists() for name in names) or layout.parse_dump_name(path.name) is not None


def dumps_in(path: Path) -> list[Path]:
    """The dumps in a folder, oldest first, or the folder itself if it is one."""
    if is_dump(path):
        return [path]
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and is_dump(folder))


@dataclass
class _Dump:
    """One dump's metadata, whoever wrote it."""

    folder: Path
    metadata: dict[str, Any]

    @property
    def op(self) -> str:
        named = layout.parse_dump_name(self.folder.name)
        return str(self.metadata.get("function_name") or (named[2] if named else self.folder.name))

    @property
    def pid(self) -> int:
        named = layout.parse_dump_name(self.folder.name)
        found = self.metadata.get("process_id", named[1] if named else 0)
        return found if isinstance(found, int) else 0

    @property
    def status(self) -> str:
        return str(self.metadata.get("execution_status", ""))

    @property
    def time(self) -> int:
        named = layout.parse_dump_name(self.folder.name)
        return _nanoseconds(str(self.metadata.get("timestamp") or (named[0] if named else "")))


class DumpFolder:
    """One dump or many."""

    kind = "dump"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self._folders = dumps_in(path)
        self.size = len(self._folders)

    def events(self, advance: Advance) -> Iterator[Event]:
        """Each dump as a call and what became of it."""
        for index, folder in enumerate(self._folders, 1):
            advance(1)
            dump = _Dump(folder, self._metadata(folder))
            for record in self._records(dump, index):
                yield Event(f"pid {dump.pid}", record)

    def _records(self, dump: _Dump, index: int) -> Iterator[schema.Record]:
        n = dump.metadata.get("call_number", index)
        n = n if isinstance(n, int) else index
        saved = self._tensors(dump.folder / layout.INPUTS)
        args, kwargs = _arguments(dump.metadata, saved)
        tid = dump.metadata.get("thread_id", 0)
        yield schema.Call(
            n, dump.time, dump.op, "dump", tid=tid if isinstance(tid, int) else 0, args=args, kwargs=kwargs
        )
        yield schema.Dump(n, "inputs", str(dump.folder))
        exception = dump.metadata.get("exception")
        if isinstance(exception, dict):
            yield schema.Raise(n, 0, str(exception.get("type", "")), str(exception.get("message", "")))
        elif dump.status == "completed":
            outputs = self._tensors(dump.folder / layout.OUTPUTS)
            mutated = [str(key) for key in dump.metadata.get("mutated_tensor_keys", [])]
            yield schema.Return(n, 0, described=True, out=_result(outputs), mutated=mutated)
        elif not dump.metadata:
            self.problems.add(f"{dump.folder.name} is half-written: it has no metadata")

    def _tensors(self, path: Path) -> dict[str, torch_archive.SavedTensor]:
        if not path.exists():
            return {}
        try:
            return torch_archive.read(path)
        except UnreadableInput as error:
            self.problems.add(str(error))
            return {}

    def _metadata(self, folder: Path) -> dict[str, Any]:
        for name, read in ((layout.METADATA, _whole), (FLASHINFER_METADATA, _last_line)):
            path = folder / name
            if not path.exists():
                continue
            try:
                if path.stat().st_size > LARGEST_METADATA:
                    raise ValueError("larger than any metadata")
                found = read(path)
            except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
                self.problems.add(f"{folder.name}/{name} is damaged ({error})")
                continue
            if isinstance(found, dict):
                return found
            self.problems.add(f"{folder.name}/{name} is not an object")
        return {}


def _whole(path: Path) -> object:
    found: object = msgspec.json.decode(path.read_bytes())
    return found


def _last_line(path: Path) -> object:
    """FlashInfer appends the state of a call as it changes; the last whole line is the newest."""
    for line in reversed(path.read_bytes().splitlines()):
        try:
            found: object = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        return found
    raise ValueError("no whole line in it")


def _arguments(
    metadata: dict[str, Any], saved: dict[str, torch_archive.SavedTensor]
) -> tuple[list[schema.Value], dict[str, schema.Value]]:
    """The arguments: as we described them, else from what the archive holds and the keys say."""
    if "args" in metadata:
        try:
            return msgspec.convert(
                (metadata["args"] or [], metadata.get("kwargs") or {}),
                tuple[list[schema.Value], dict[str, schema.Value]],
            )
        except msgspec.ValidationError:
            pass
    described: dict[str, schema.Value] = {key: tensor.described() for key, tensor in saved.items()}
    details = metadata.get("tensor_details")
    for key, detail in details.items() if isinstance(details, dict) else ():
        _complete(described.get(key), detail)
    others = metadata.get("input_metadata")
    if isinstance(others, dict):
        described |= {key: _other(value) for key, value in others.items() if not str(key).endswith("__container")}
    return _ordered(described)


def _complete(described: schema.Value, detail: object) -> None:
    """FlashInfer notes the device beside the archive."""
    if isinstance(described, schema.Tensor) and isinstance(detail, dict):
        described.device = str(detail.get("device", described.device))


def _other(value: object) -> schema.Value:
    if isinstance(value, dict):
        return schema.Opaque(str(value.get("type", "dict")), str(value.get("repr", value.get("value", ""))))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return schema.Opaque(type(value).__name__, str(value)[:200])


def _ordered(
    described: dict[str, schema.Value],
) -> tuple[list[schema.Value], dict[str, schema.Value]]:
    """Positional arguments in order, then the named ones; nested tensors keep their flat key as name."""
    positional: dict[int, schema.Value] = {}
    named: dict[str, schema.Value] = {}
    for key, value in described.items():
        match = _KEY.fullmatch(key)
        if match and match[1] == "arg" and match[2].isdigit() and len(match[2]) < 5:
            positional[int(match[2])] = value
        else:
            named[key.removeprefix("kwarg_")] = value
    return [positional.get(index) for index in range(max(positional, default=-1) + 1)], named


def _result(outputs: dict[str, torch_archive.SavedTensor]) -> schema.Value:
    results: list[schema.Value] = [tensor.described() for key, tensor in outputs.items() if key.startswith("result")]
    if len(results) == 1:
        return results[0]
    return schema.Sequence("tuple", len(results), results) if results else None


def _nanoseconds(stamp: str) -> int:
    """``20260319_004821_182`` in local time, as nanoseconds since the epoch."""
    try:
        moment = datetime.strptime(stamp[:15], "%Y%m%d_%H%M%S")
        return int(moment.timestamp()) * 10**9 + int(stamp[16:] or 0) * 10**6
    except (ValueError, OverflowError):
        return 0
