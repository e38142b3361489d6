"""PATH → evidence: everything that lies there, read once, for a report to be made of.

    gather(Path("recording"), …)  →  Evidence(kind="recording", history=…, session={"exit_status": 1, …}, …)

The values in dumps are read only of the calls that a report asks for.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read import living
from firstfault.read.calls import Call, History
from firstfault.read.events import Advance, Problems
from firstfault.read.files import is_regular
from firstfault.read.formats import marker_page, safetensors_file, torch_archive
from firstfault.read.formats.recording import Recording, process_folders
from firstfault.read.session import open_source
from firstfault.read.tensors import saved_inputs, saved_outputs
from firstfault.record import layout, progress, schema


@dataclass
class Evidence:
    """What lies at a path; what only a recording has is empty for all else.

    Attributes:
        path, kind: where it lies, and what it is, in words.
        history: the calls.
        problems: what could not be read.
        session: what ``session.json`` says of the command.
        run_is_gone: whether the ``firstfault run`` of that session is; None where it cannot be told from here.
        stderr: the end of what the command wrote there.
        running: by process, of those that have not written their end: whether it is still there.
        pages: by process, of those that left one: its marker page.
    """

    path: Path
    kind: str
    history: History
    problems: Problems
    session: Mapping[str, object] = field(default_factory=dict)
    run_is_gone: bool | None = None
    stderr: str = ""
    running: Mapping[str, bool | None] = field(default_factory=dict)
    pages: Mapping[str, progress.Page] = field(default_factory=dict)

    def complete(self, call: Call) -> None:
        """Add the statistics of the tensors that only the call's dump can tell."""
        if not call.dump:
            return
        record = call.record
        record.args, record.kwargs = _copied(record.args), _copied(record.kwargs)  # equal values are shared
        [call.out] = _copied([call.out])
        for side, tensors in (("inputs", saved_inputs(record)), ("outputs", saved_outputs(call.out))):
            unread = {key: tensor for key, tensor in tensors if tensor.min is None and tensor.statistics is None}
            saved = _saved(side, call, self.path)
            if saved is None or not unread:
                continue
            add_statistics = torch_archive.add_statistics if saved.suffix == ".pt" else safetensors_file.add_statistics
            try:
                add_statistics(saved, unread)
            except UnreadableInput as error:
                self.problems.add(str(error))


def gather(path: Path, advance: Advance) -> Evidence:
    """Read what lies at ``path``.

    Args:
        path: a recording, a text log, or a dump folder.
        advance: told of the bytes read.

    Raises:
        UnreadableInput: nothing there can be read.
    """
    source = open_source(path)
    history = History()
    with _uncollected():
        for event in source.events(advance):
            history.feed(event)
    found = Evidence(path, source.kind, history, source.problems)
    if isinstance(source, Recording):
        folders = {folder.name: folder for folder in process_folders(source.path)}
        found.session = source.session()
        found.run_is_gone = living.run_is_gone(found.session)
        found.stderr = source.stderr_tail()
        found.running = _running(folders, history)
        found.pages = _pages(folders)
    return found


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for reference cycles: records make none, and looking through all that are kept doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _running(folders: Mapping[str, Path], history: History) -> dict[str, bool | None]:
    return {
        name: living.is_running(folders[name], process.header)
        for name, process in history.processes.items()
        if process.header is not None and process.end is None
    }


def _pages(folders: Mapping[str, Path]) -> dict[str, progress.Page]:
    found = {name: marker_page.find(folder) for name, folder in folders.items()}
    return {name: page for name, page in found.items() if page is not None}


def _saved(side: str, call: Call, source: Path) -> Path | None:
    """One side of a call's dump: where the record says, or in the recording wherever that has been moved to."""
    folder = Path(call.dump)
    for place in (folder, source / call.process / layout.DUMPS / folder.name, source.parent / folder.name):
        for suffix in (".pt", ".safetensors"):
            if is_regular(place / (side + suffix)):
                return place / (side + suffix)
    return None


def _copied(values: Any) -> Any:
    return msgspec.convert(msgspec.to_builtins(values), _Values) if values else values


_Values = list[schema.Value] | dict[str, schema.Value]
