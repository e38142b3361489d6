"""``metadata.json`` of a dump: what SGLang's has, under its names, and what a replay needs besides.

{
  "function_name": "rmsnorm",
  "execution_status": "inputs_saved",
  "input_metadata": {"arg_2": 1e-06},
  …
}
"""

from __future__ import annotations

import json
import os
from ast import literal_eval
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from firstfault.capture.describe import PathKey
from firstfault.record import layout, schema
from firstfault.record.plain import plain_text

PAGE = 4096

_encode = msgspec.json.Encoder().encode


class MetadataFile:
    """The file, there whole from the first time that it is written."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{layout.METADATA}"
        self._fd = -1

    def write(self, metadata: dict[str, Any]) -> None:
        """Put it there whole, or leave the one that is there.

        The first goes to another name and is renamed, filled up to a page. A later one within that page is one
        ``pwrite`` over it, which needs no more disk and which no signal can interrupt midway: renaming over a
        file costs 230 µs on ext4, this 3.

        Raises:
            OSError: the system refused it.
        """
        data = _one_field_a_line(metadata).ljust(PAGE)
        in_place = len(data) == PAGE and self._fd >= 0 and os.fstat(self._fd).st_size == PAGE
        if in_place and os.pwrite(self._fd, data, 0) == PAGE:
            return
        fd = _put(self._path, data)
        self.close()
        self._fd = fd

    def close(self) -> None:
        """Write no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def of_inputs(
    call: schema.Call,
    stamp: str,
    pid: int,
    keys: list[str],
    paths: dict[str, tuple[PathKey, ...]],
    state: dict[str, bytes],
    lost: dict[str, str],
) -> dict[str, Any]:
    """What it says while a call is in flight: its inputs are saved."""
    return {
        "function_name": call.op,
        "timestamp": stamp,
        "process_id": pid,
        "execution_status": "inputs_saved",
        "input_metadata": dict(_flat_call(call)),
        "input_tensor_keys": keys,
        "output_metadata": {},
        "output_tensor_keys": [],
        "mutated_tensor_keys": [],
        "call_number": call.n,
        "thread_id": call.tid,
        "tensor_paths": paths,
        "random_state": list(state),
        "partial": {},
        "not_captured": lost,
        "args": call.args,
        "kwargs": call.kwargs,
        "result": None,
    }


def _one_field_a_line(fields: dict[str, Any]) -> bytes:
    """JSON that a person can read and that stays within a page for most calls."""
    return b"{\n" + b",\n".join([_field(name) + _encode(value) for name, value in fields.items()]) + b"\n}"


@lru_cache(maxsize=64)
def _field(name: str) -> bytes:
    return f"  {json.dumps(name)}: ".encode()


def _put(path: str, data: bytes) -> int:
    """Write ``data`` under another name and rename it to ``path``; return its descriptor, open for writing."""
    unfinished = f"{path.removesuffix('.json')}.unfinished"
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, layout.PRIVATE_FILE)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.replace(unfinished, path)
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return fd


def _flat_call(call: schema.Call) -> Iterator[tuple[str, Any]]:
    for index, value in enumerate(call.args or ()):
        yield from flat(value, f"arg_{index}")
    for name, value in (call.kwargs or {}).items():
        yield from flat(value, f"kwarg_{name}")


def flat(value: schema.Value, key: str) -> Iterator[tuple[str, Any]]:
    """What is no tensor, flattened to the keys that SGLang's ``metadata.json`` has."""
    if isinstance(value, schema.Tensor):
        return
    if isinstance(value, schema.Sequence):
        for index, item in enumerate(value.items):
            yield from flat(item, f"{key}_{index}")
        yield f"{key}__container", {"type": value.name, "length": value.length}
    elif isinstance(value, schema.Mapping):
        names = [name if value.fields else _plain_key(name) for name in value.keys]
        for name, item in zip(names, value.values, strict=True):
            yield from flat(item, f"{key}_{name}")
        yield f"{key}__container", {"type": value.name, "keys": names}
    elif isinstance(value, schema.Opaque) and value.name == "dtype":
        yield key, {"type": "torch.dtype", "value": value.repr}
    elif isinstance(value, schema.Opaque):
        yield key, {"type": value.name, "repr": value.repr or value.why or f"shape={value.shape}"}
    elif isinstance(value, schema.Text):
        yield key, {"type": "str", "repr": value.start, "length": value.length}
    elif isinstance(value, schema.Number):
        yield key, {"type": "number", "repr": value.text}
    else:
        yield key, value


def _plain_key(key: str) -> str:
    """A dict's key as ``str`` gives it, from its ``repr``."""
    try:
        return plain_text(str(literal_eval(key)))
    except (ValueError, SyntaxError):
        return key
