"""A recorder in this process: the program under test runs here, and what was recorded of it is read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from firstfault import settings
from firstfault.capture import recorder
from firstfault.record import codec, layout, schema
from firstfault.settings import Level, Settings

R = TypeVar("R")


@dataclass(frozen=True)
class Recording:
    """What one in-process recorder leaves behind; readable while it is still running."""

    folder: Path
    text_path: Path

    def text(self) -> str:
        """The text log so far."""
        return self.text_path.read_text() if self.text_path.exists() else ""

    def records(self) -> list[schema.Record]:
        """Every record so far, over all segments of all processes, but for those on targets."""
        return [record for record in self.everything() if not isinstance(record, schema.Target)]

    def everything(self) -> list[schema.Record]:
        """Every record so far, over all segments of all processes."""
        files = sorted(self.folder.glob(f"*/{layout.SEGMENTS}"))
        return [codec.decode(line) for file in files for line in _written(file).splitlines()]

    def clear(self) -> None:
        """Empty the text log and the records, to look at the next call alone."""
        for path in (self.text_path, *self.folder.glob(f"*/{layout.SEGMENTS}")):
            if path.exists():
                os.truncate(path, 0)

    def of(self, kind: type[R]) -> list[R]:
        """The records of one kind."""
        return [record for record in self.records() if isinstance(record, kind)]

    def dumps(self) -> list[Path]:
        """The dump folders, in the order of their calls' numbers."""
        folders = self.folder.glob(f"*/{layout.DUMPS}/*")
        return sorted(folders, key=lambda folder: int(self.metadata(folder).get("call_number", 0)))

    @staticmethod
    def metadata(folder: Path) -> dict[str, Any]:
        """A dump's ``metadata.json``, empty if there is none."""
        path = folder / layout.METADATA
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found


def _written(segment: Path) -> bytes:
    """A segment without what a ring has laid out for later."""
    return segment.read_bytes().partition(b"\0")[0]


def loaded(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of an archive, loaded the safe way."""
    tensors: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return tensors


def inputs_of(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors that a call was given."""
    return loaded(folder / layout.INPUTS)


def outputs_of(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors that a call gave or changed."""
    return loaded(folder / layout.OUTPUTS)


@contextmanager
def recording(folder: Path, level: int, **chosen: Any) -> Iterator[Recording]:
    """Record in this process at ``level`` into ``folder`` for as long as the block lasts."""
    text = folder / "log.txt"
    everything: dict[str, Any] = {"recording": folder / "recording", "text_dest": str(text)} | chosen
    wanted = Settings(level=Level(level), **everything)
    before = settings.current, recorder._current
    settings.current = lambda: wanted  # type: ignore[assignment]
    recorder.switch(None)
    try:
        yield Recording(folder / "recording", text)
    finally:
        if recorder._current is not None:
            recorder._current.close()
        settings.current = before[0]
        recorder.switch(before[1])


def first_argument(record: schema.Call | schema.Inputs) -> schema.Value:
    """The description of a call's first argument."""
    assert record.args is not None
    return record.args[0]


def bits(tensor: torch.Tensor) -> bytes:
    """The values of a plain tensor byte for byte, in its logical order; every dtype can, and NaN equals itself."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    size = tensor.dtype.itemsize
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    shape, stride = (*tensor.shape, size), (*(step * size for step in tensor.stride()), 1)
    return raw.as_strided(shape, stride, int(tensor.storage_offset()) * size).contiguous().numpy().tobytes()


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two plain tensors agree in type, layout and every byte."""
    layouts = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in (left, right)]
    return layouts[0] == layouts[1] and bits(left) == bits(right)
