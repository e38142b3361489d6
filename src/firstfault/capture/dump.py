"""Level 10: the tensors of a call on disk, its inputs before it runs.

    20260319_004821_182_pid919286_RotaryEmbedding.forward_call0001/
        inputs.pt        arg_0, arg_1, kwarg_x, …; and the random-number state, as records of the archive
        outputs.pt       result, result_0, …; and mutated_arg_0, … for what the call changed in place
        metadata.json    function_name, execution_status, …; and ``partial``, what was too large to be saved whole

A dump's folder bears the call's name and exists before anything is copied. A process keeps the last
complete dumps within its budget, and the ones in flight always.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from firstfault.capture import archive, dump_keys, dump_metadata, partial, snapshot
from firstfault.capture.describe import Found, PathKey, class_name
from firstfault.capture.guard import message_of
from firstfault.capture.part import Part
from firstfault.record import layout, schema
from firstfault.settings import Settings

FREE_SHARE = 20
MOST_FREE = 2**30
"""A twentieth of the disk, at most 1 GiB, is left free for the program."""
LOOK_SECONDS = 1.0
"""How long what was seen of a disk with much more than that free holds."""


class Skipped(Exception):
    """A dump that is not made; the text says why."""


class Side(NamedTuple):
    """Tensors of one side of a call, which lie on copies of their storages.

    Attributes:
        views: the tensors.
        storages: one-dimensional uint8 tensors on the CPU, contiguous.
        paths: where each tensor stands among the arguments or results, by its key.
        lost: reason by key of what is not there.
        value: the result as it is described; None for arguments.
    """

    views: tuple[archive.View, ...]
    storages: list[torch.Tensor]
    paths: dict[str, tuple[PathKey, ...]]
    lost: dict[str, str]
    value: schema.Value = None

    @property
    def nbytes(self) -> int:
        """How much it takes."""
        return sum(map(len, self.storages))


class Saved(NamedTuple):
    """A dump that is complete, and the sizes of its two archives in bytes; 0 for outputs that are not there."""

    folder: str
    inputs: int
    outputs: int


class Dumper:
    """The dumps of one process, within its budget."""

    def __init__(self, folder: Path, settings: Settings, pid: int) -> None:
        self._folder = folder
        self._within = f"{folder}{os.sep}"  # joined as text: paths as objects take 20 µs each where the code is cold
        self._settings = settings
        self._pid = pid
        self._calls: dict[str, int] = {}
        self._complete: deque[tuple[str, int]] = deque()
        self._kept_bytes = 0
        self._spare, self._looked = 0, 0.0
        self._counting = threading.Lock()
        self.largest = settings.dump_tensor_max_bytes
        """How large a tensor is dumped whole, in bytes."""
        self.wanted = lru_cache(maxsize=None)(self._wanted)
        self.saves_modules = settings.dump_modules

    def begin(
        self, call: schema.Call, found: list[Found], not_captured: int, told: dict[str, Any] | None = None
    ) -> OpenDump:
        """Save the inputs of a call that is about to run.

        Args:
            call: the call, with its arguments described.
            found: the tensors among them.
            not_captured: how many values the walk over the arguments left out.
            told: what the metadata says of the call besides.

        Raises:
            Skipped: it does not fit the budget or the disk.
            OSError: the system refused to write it; nothing is left of it.
        """
        keyed = dict(dump_keys.by_key(found, dump_keys.input_key))
        planned = snapshot.plan(keyed.items(), partial.choose(call.op, keyed, self.largest))
        self.check(planned.nbytes)
        self._drop_oldest(planned.nbytes)
        with self._new_folder(call.op) as (folder, stamp):
            return OpenDump(self, folder, call, stamp, self._pid, keyed, planned, not_captured, told or {})

    def save(self, call: schema.Call, replay: int, inputs: Side, after: Side | None, outputs: Side | None) -> Saved:
        """Save a call as it ran at the replay of a CUDA graph.

        Args:
            call: the call that was captured, with its arguments described.
            replay: which replay of the graph.
            inputs: what it was given.
            after: the same after the call; None, as for the outputs, where it is not known to have come to its end.
            outputs: what it gave.

        Raises:
            Skipped: it does not fit the budget or the disk.
            OSError: the system refused to write it; nothing is left of it.
        """
        nbytes = inputs.nbytes + (outputs.nbytes if outputs is not None else 0)
        self.check(nbytes)
        self._drop_oldest(nbytes)
        with self._new_folder(call.op) as (folder, stamp):
            keys = [view.key for view in inputs.views]
            metadata = dump_metadata.of_inputs(call, stamp, self._pid, keys, inputs.paths, {}, inputs.lost)
            metadata |= {"graph": call.graph, "replay": replay}
            sizes = [_write(f"{folder}/{layout.INPUTS}", inputs.views, inputs.storages, {}, {}), 0]
            if after is not None and outputs is not None:
                sizes[1] = _save_outcome(folder, metadata, inputs, after, outputs)
            with closing(dump_metadata.MetadataFile(folder)) as file:
                file.write(metadata)
        self.complete(folder, sum(sizes))
        return Saved(folder, sizes[0], sizes[1])

    @contextmanager
    def _new_folder(self, op: str) -> Iterator[tuple[str, str]]:
        """The folder of a new dump and its time stamp; it does not stay where what runs inside fails."""
        with self._counting:
            index = self._calls[op] = self._calls.get(op, 0) + 1
        now = time.time()
        stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(now)) + f"_{int(now * 1000) % 1000:03d}"
        folder = self._within + layout.dump_name(stamp, self._pid, op, index)
        os.mkdir(folder, layout.PRIVATE_FOLDER)
        try:
            yield folder, stamp
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def check(self, nbytes: int, held: int = 0) -> None:
        """Refuse what is larger than the budget, or would fill the disk.

        Args:
            nbytes: what is to be written.
            held: what the same dump has written already.

        Raises:
            Skipped: with the sizes.
        """
        budget = self._settings.dump_max_bytes
        if held + nbytes > budget:
            raise Skipped(f"{held + nbytes} bytes of tensors exceed FIRSTFAULT_DUMP_MAX_BYTES={budget}")
        self._spare -= nbytes
        now = time.monotonic()
        if self._spare > MOST_FREE and now < self._looked + LOOK_SECONDS:
            return  # so much was free a moment ago that the others cannot have used it up
        self._looked = now
        self._folder.mkdir(mode=layout.PRIVATE_FOLDER, parents=True, exist_ok=True)
        disk = shutil.disk_usage(self._folder)
        keep_free = min(MOST_FREE, disk.total // FREE_SHARE)
        self._spare = disk.free - nbytes - keep_free
        if self._spare < 0:
            raise Skipped(f"{nbytes} bytes of tensors would leave less than {keep_free} bytes of disk free")

    def complete(self, folder: str, nbytes: int) -> None:
        """Count a dump as complete, and drop the oldest ones beyond the budget."""
        with self._counting:
            self._complete.append((folder, nbytes))
            self._kept_bytes += nbytes
        self._drop_oldest(0)

    def _drop_oldest(self, coming: int) -> None:
        """Make room for ``coming`` bytes of a new dump; the newest complete one stays unless it stands in the way."""
        limit = self._settings
        dropped = []
        with self._counting:
            while len(self._complete) > (0 if coming else 1) and (
                len(self._complete) > limit.dump_max_calls or self._kept_bytes + coming > limit.dump_max_bytes
            ):
                oldest, size = self._complete.popleft()
                self._kept_bytes -= size
                dropped.append(oldest)
        for folder in dropped:
            shutil.rmtree(folder, ignore_errors=True)

    def _wanted(self, op: str) -> bool:
        """Whether the include and exclude patterns let ``op`` through."""
        include, exclude = self._settings.dump_include, self._settings.dump_exclude
        if include and not any(fnmatch.fnmatch(op, pattern) for pattern in include):
            return False
        return not any(fnmatch.fnmatch(op, pattern) for pattern in exclude)


class OpenDump:
    """The dump of a call in flight: its inputs are on disk."""

    def __init__(
        self,
        dumper: Dumper,
        folder: str,
        call: schema.Call,
        stamp: str,
        pid: int,
        keyed: dict[str, Found],
        planned: snapshot.Plan,
        not_captured: int,
        told: dict[str, Any],
    ) -> None:
        self.folder = folder
        self._dumper = dumper
        self._keyed = keyed
        self._file = dump_metadata.MetadataFile(folder)
        self._inputs = snapshot.take(planned)
        state = _random_state({item.tensor.device for item in keyed.values() if item.tensor.is_cuda})
        self.nbytes = _write_snapshot(f"{folder}/{layout.INPUTS}", self._inputs, state)
        keys = self._inputs.keys
        paths = {key: keyed[key].path for key in keys}
        lost = planned.unreachable | dump_keys.left_out("inputs", not_captured)
        self._metadata = dump_metadata.of_inputs(call, stamp, pid, keys, paths, state, lost) | told
        self._parts = _parts_of(self._inputs.plan)
        self._metadata["partial"] = {key: part.how for key, part in self._parts.items()}
        self._file.write(self._metadata)

    def tell(self, facts: dict[str, Any]) -> None:
        """Add to the metadata what has become known since the call began.

        Raises:
            OSError: the system refused to write it.
        """
        self._metadata |= facts
        self._file.write(self._metadata)

    def finish(self, result: schema.Value, found: list[Found], not_captured: int) -> list[tuple[PathKey, ...]]:
        """Save the outputs and what the call changed in place; return the paths to the latter.

        Raises:
            Skipped, OSError, RuntimeError: the outputs did not fit or could not be copied; the dump then says
                that the call completed without them.
        """
        self._metadata["execution_status"] = "completed"
        self._metadata["output_metadata"] = dict(dump_metadata.flat(result, "result"))
        self._metadata["result"] = result
        lost = dump_keys.left_out("outputs", not_captured)
        try:
            changed, unknown = self._changed()
            lost |= {f"mutated_{key}": reason for key, reason in unknown.items()}
            lost |= self._save_outputs(dict(dump_keys.by_key(found, dump_keys.output_key)), changed)
        except (Skipped, OSError, RuntimeError) as reason:
            lost["outputs"] = str(reason)
            raise
        finally:
            self._metadata["not_captured"] |= lost
            self._close()
        return [self._keyed[key].path for key in changed]

    def fail(self, error: BaseException) -> None:
        """Mark the call as ended by ``error``.

        Raises:
            OSError: the system refused to write it; the dump still says that the inputs were saved.
        """
        self._metadata["execution_status"] = "exception"
        self._metadata["exception"] = {"type": class_name(error), "message": message_of(error)}
        self._close()

    def _changed(self) -> tuple[list[str], dict[str, str]]:
        """Keys of the inputs that the call wrote to or laid out anew, and why that is unknown of others."""
        keys, unknown = self._inputs.changed()
        relaid = [key for key in self._inputs.plain_keys if key not in keys and _is_relaid(self._keyed[key])]
        return keys + relaid, {key: reason for key, reason in unknown.items() if key not in relaid}

    def _save_outputs(self, results: dict[str, Found], changed: list[str]) -> dict[str, str]:
        """Write ``outputs.pt`` where there are any; return the reasons of those that it lacks."""
        parts = partial.choose_results(results, self._parts, self._dumper.largest)
        parts |= {f"mutated_{key}": self._parts[key].again(f"mutated_{key}") for key in changed if key in self._parts}
        written = [(f"mutated_{key}", self._keyed[key]) for key in changed]
        planned = snapshot.plan([*results.items(), *written], parts)
        if planned.ranges or planned.others:
            self._dumper.check(planned.nbytes, held=self.nbytes)
            outputs = snapshot.take(planned)
            self.nbytes += _write_snapshot(f"{self.folder}/{layout.OUTPUTS}", outputs, {})
            self._metadata["output_tensor_keys"] = [key for key in outputs.keys if key in results]
            self._metadata["mutated_tensor_keys"] = [key for key in outputs.keys if key not in results]
            self._metadata["tensor_paths"] |= {key: item.path for key, item in results.items()}
            self._metadata["partial"] |= {key: part.how for key, part in parts.items()}
        return planned.unreachable

    def _close(self) -> None:
        """Write the last word and give everything back, however that goes."""
        try:
            self._file.write(self._metadata)
        finally:
            self._file.close()
            self._inputs = None  # type: ignore[assignment]
            self._dumper.complete(self.folder, self.nbytes)


def _parts_of(planned: snapshot.Plan) -> dict[str, Part]:
    """By key, the tensors that are dumped in part."""
    return {key: part for part in planned.ranges if isinstance(part, Part) for key, _ in part.members}


def _save_outcome(folder: str, metadata: dict[str, Any], inputs: Side, after: Side, outputs: Side) -> int:
    """Save what a call gave and changed in place, and say so in its metadata; the size of the archive, if there is one.

    Raises:
        OSError: the system refused to write it.
    """
    on_storage: dict[int, list[archive.View]] = {}
    for view in inputs.views:
        on_storage.setdefault(view.storage, []).append(view)
    changed = {
        key
        for index, views in on_storage.items()
        for key in snapshot.touched(inputs.storages[index], after.storages[index], views)
    }
    beyond = len(outputs.storages)
    mutated = [
        replace(view, key=f"mutated_{view.key}", storage=view.storage + beyond)
        for view in after.views
        if view.key in changed
    ]
    metadata |= {
        "execution_status": "completed",
        "output_metadata": dict(dump_metadata.flat(outputs.value, "result")),
        "output_tensor_keys": [view.key for view in outputs.views],
        "mutated_tensor_keys": [view.key for view in mutated],
        "tensor_paths": metadata["tensor_paths"] | outputs.paths,
        "not_captured": metadata["not_captured"] | outputs.lost,
        "result": outputs.value,
    }
    if not outputs.views and not mutated:
        return 0
    views, storages = _compact([*outputs.views, *mutated], outputs.storages + after.storages)
    return _write(f"{folder}/{layout.OUTPUTS}", views, storages, {}, {})


def _compact(
    views: list[archive.View], storages: list[torch.Tensor]
) -> tuple[tuple[archive.View, ...], list[torch.Tensor]]:
    """The same tensors on those of the storages that any of them lies on."""
    used = {old: new for new, old in enumerate(sorted({view.storage for view in views}))}
    return tuple(replace(view, storage=used[view.storage]) for view in views), [storages[index] for index in used]


def _is_relaid(item: Found) -> bool:
    """Whether a plain tensor lies elsewhere than before the call, as after ``resize_`` or ``set_``."""
    tensor, before = item.tensor, item.described
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) != (before.ptr, before.shape, before.stride)


def _write_snapshot(path: str, taken: snapshot.Snapshot, state: dict[str, bytes]) -> int:
    return _write(path, taken.views, taken.storages, taken.others, state)


def _write(
    path: str,
    views: tuple[archive.View, ...],
    storages: list[torch.Tensor],
    others: dict[str, torch.Tensor],
    state: dict[str, bytes],
) -> int:
    attachments = {f"random_state/{name}": data for name, data in state.items()}
    if not others and archive.fits(storages):
        return archive.write(path, views, storages, attachments)
    return archive.write_any(path, archive.tensors(views, storages) | others, attachments)


def _random_state(devices: set[torch.device]) -> dict[str, bytes]:
    """State of the CPU's generator and of each device's that the arguments live on."""
    state = {"cpu": archive.raw(torch.get_rng_state())}
    for device in devices:
        with suppress(RuntimeError):
            state[str(device)] = archive.raw(torch.cuda.get_rng_state(device))
    return state
