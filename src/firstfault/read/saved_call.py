"""One dump → the call that it saved: what was called, with what, and what came of it.

    read(Path("dumps/20260319_004821_182_pid919286_rmsnorm_call0001"))

Values are as they were described; the tensors' own are still in the archives. Nothing is executed, and no torch.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstfault.errors import UnreadableInput
from firstfault.read.files import exists
from firstfault.read.formats import dump_values
from firstfault.read.formats.dump_folder import Dump, DumpFolder, dumps_in, is_dump
from firstfault.read.formats.dump_values import Keyed
from firstfault.record import layout

Path_ = tuple[Any, ...]


@dataclass(frozen=True)
class SavedCall:
    """A call as its dump has it.

    Attributes:
        folder: the dump.
        op, n: the operator, and the number of the call; 0 where that was not recorded.
        metadata: all that the dump says.
        given, gave: arguments and result, with the keys of their tensors.
        inputs, outputs: the archives; None for one that is not there.
        ours: whether we wrote it: then what a call changed in place is known.
    """

    folder: Path
    op: str
    n: int
    metadata: dict[str, Any]
    given: Keyed
    gave: Keyed
    inputs: Path | None
    outputs: Path | None
    ours: bool

    @property
    def completed(self) -> bool:
        """Whether the call came back."""
        return Dump(self.folder, self.metadata).completed

    @property
    def raised(self) -> tuple[str, str] | None:
        """Type and message of the exception that the call ended in."""
        found = self.metadata.get("exception")
        return (str(found.get("type", "")), str(found.get("message", ""))) if isinstance(found, dict) else None

    @property
    def function(self) -> dict[str, Any]:
        """How what was called is found again; empty in dumps of others."""
        found = self.metadata.get("function")
        return found if isinstance(found, dict) else {}

    def listed(self, name: str) -> list[str]:
        """A list of keys in the metadata."""
        found = self.metadata.get(name)
        return [str(key) for key in found] if isinstance(found, list) else []

    def lost(self) -> dict[str, str]:
        """Why tensors are missing, by key."""
        found = self.metadata.get("not_captured")
        return {str(key): str(why) for key, why in found.items()} if isinstance(found, dict) else {}

    def keys_by_path(self) -> dict[Path_, deque[str]]:
        """The keys of the tensors by the path to each; of two with one path, in the order of the walk."""
        found: dict[Path_, deque[str]] = defaultdict(deque)
        paths = self.metadata.get("tensor_paths")
        outputs = set(self.listed("output_tensor_keys"))
        for key, path in paths.items() if isinstance(paths, dict) else ():
            if isinstance(path, list):
                found[("result", *path) if key in outputs else tuple(path)].append(str(key))
        return found


def read(folder: Path) -> SavedCall:
    """The call that a dump saved.

    Raises:
        UnreadableInput: there is no dump, or what it says of the call cannot be read.
    """
    if not folder.is_dir() or not is_dump(folder):
        raise UnreadableInput(f"{folder} is no dump; expected a folder with inputs.pt and metadata.json")
    source = DumpFolder(folder)
    metadata = source.metadata(folder)
    given = dump_values.keyed_arguments(metadata, source.saved(folder, "inputs"))
    gave = dump_values.keyed_result(metadata, source.saved(folder, "outputs"))
    if source.problems.lines() and not metadata:
        raise UnreadableInput(source.problems.lines()[0])
    dump = Dump(folder, metadata)
    return SavedCall(
        folder,
        dump.op,
        dump.number("call_number", dump.number("call_sequence", 0)),
        metadata,
        given,
        gave,
        _archive(folder, "inputs"),
        _archive(folder, "outputs"),
        "args" in metadata,
    )


def folder_of(path: Path) -> Path | None:
    """The one dump that a path means: itself, or one of its files; None where it is no dump or several."""
    if path.name in (layout.INPUTS, layout.OUTPUTS, layout.METADATA) and path.is_file():
        return path.parent
    if not path.is_dir() or not is_dump(path):
        return None
    found = dumps_in(path)
    return found[-1] if found else None


def _archive(folder: Path, side: str) -> Path | None:
    return next(
        (folder / f"{side}{kind}" for kind in (".pt", ".safetensors") if exists(folder / f"{side}{kind}")), None
    )
