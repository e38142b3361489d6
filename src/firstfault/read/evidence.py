"""PATH → evidence: everything that lies there, read once, for a report to be made of.

    gather(Path("recording"), …)  →  Evidence(kind="recording", history=…, session={"exit_status": 1, …}, …)

The values in dumps are read only of the calls that a report asks for.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read import elements, living, remote
from firstfault.read.calls import Call
from firstfault.read.events import Advance, Problems, Source
from firstfault.read.files import is_regular, read_end
from firstfault.read.formats import dump_folder, marker_page, safetensors_file, torch_archive
from firstfault.read.formats.complaint import Complaint
from firstfault.read.formats.error_log import ErrorLog, complaints
from firstfault.read.formats.kernel_api_log import KernelApiLog
from firstfault.read.formats.recording import Recording, process_folders
from firstfault.read.history import History
from firstfault.read.session import open_source
from firstfault.read.tensors import Labelled, flattened, saved_inputs, saved_outputs
from firstfault.read.uncollected import uncollected
from firstfault.read.unseen import unseen
from firstfault.record import layout, progress, schema

MOST_TEXTS = 32
_OF_PROCESS = re.compile(r"-(\d{1,10})$")
LOG_END = 2**20
"""Bytes at the end of a kernel API log that are searched for what the program said when it failed."""


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
        complaints: what the program and tools said of the failure.
        unseen: Python processes of the command that nothing was recorded in, and why.
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
    complaints: list[Complaint] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    running: Mapping[str, bool | None] = field(default_factory=dict)
    pages: Mapping[str, progress.Page] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What to call it in commands."""
        return remote.named(self.path)

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
            for key, how in dump_folder.partial_of(saved.parent).items():
                if key in unread:
                    unread.pop(key).statistics = f"[the dump holds only {how.words}]"
            add_statistics = torch_archive.add_statistics if saved.suffix == ".pt" else safetensors_file.add_statistics
            try:
                add_statistics(saved, unread)
            except UnreadableInput as error:
                self.problems.add(str(error))


class Dumps:
    """What two inputs saved of a call that both have, element by element.

    Called with the call of each, it gives how the tensors compare by their labels: those that it was given, and those
    that it gave or changed. Empty where one of the two has no dump of it.
    """

    def __init__(self, left: Evidence, right: Evidence, tolerance: elements.Tolerance) -> None:
        self._sides = left, right
        self._tolerance = tolerance

    def __call__(self, left: Call, right: Call) -> tuple[dict[str, elements.Elements], dict[str, elements.Elements]]:
        """Given, and gave."""
        if not left.dump or not right.dump:
            return {}, {}
        given, gave = (self._side(side, left, right) for side in ("inputs", "outputs"))
        names = {key: label for (key, _), (label, _) in zip(saved_inputs(left.record), _inputs(left), strict=False)}
        after = {f"mutated_{key}": f"{label} after the call" for key, label in names.items()}
        names |= after | {
            key: label for (key, _), (label, _) in zip(saved_outputs(left.out), left.outputs(), strict=False)
        }
        return _named(given, names), _named(gave, names)

    def _side(self, side: str, left: Call, right: Call) -> dict[str, elements.Elements]:
        paths = [_saved(side, call, of.path) for call, of in zip((left, right), self._sides, strict=True)]
        if paths[0] is None or paths[1] is None:
            return {}
        try:
            return elements.compare(paths[0], paths[1], self._tolerance).elements
        except UnreadableInput as error:
            self._sides[0].problems.add(str(error))
            return {}


def _inputs(call: Call) -> list[Labelled]:
    return flattened(call.inputs())


def _named(found: dict[str, elements.Elements], names: Mapping[str, str]) -> dict[str, elements.Elements]:
    return {names[key]: each for key, each in found.items() if key in names}


def gather(path: Path, advance: Advance, beside: Sequence[Path] = ()) -> Evidence:
    """Read what lies at ``path``, and what lies elsewhere on the same failure.

    Args:
        path: a recording, a text log, a dump folder, or a text of errors.
        advance: told of the bytes read.
        beside: more of these. What a process is called in one input stays its name; one that has the name of a
            process of another input is told apart by the input's.

    Raises:
        UnreadableInput: nothing in one of them can be read.
    """
    sources = [(each, open_source(each)) for each in (path, *beside)]
    history = History()
    with uncollected():
        for _, source in sources:
            _feed(history, source, advance)
    where, main = next((item for item in sources if not isinstance(item[1], ErrorLog)), sources[0])
    found = Evidence(where, main.kind, history, main.problems)
    if isinstance(main, Recording):
        folders = {folder.name: folder for folder in process_folders(main.path)}
        found.session = main.session()
        found.run_is_gone = living.run_is_gone(found.session)
        found.stderr = main.stderr_tail()
        found.unseen = unseen(main.path)
        found.running = _running(folders, history)
        found.pages = _pages(folders)
    for _, source in sources:
        found.complaints += _complaints(source)
        if source is not main:
            found.problems.merge(source.problems)
    return found


def _feed(history: History, source: Source, advance: Advance) -> None:
    """Take in the records of one input."""
    taken = set(history.processes)
    for event in source.events(advance):
        if event.process in taken:
            event = event._replace(process=f"{source.path.name}/{event.process}")
        history.feed(event)


def _complaints(source: Source) -> list[Complaint]:
    """What an input says of a failure: all of a text of errors, of others what stands at the end."""
    if isinstance(source, ErrorLog):
        return source.complaints
    if isinstance(source, Recording):
        return [*_of_tools(source.path), *complaints(source.stderr_tail().splitlines(), layout.STDERR_TAIL)]
    if isinstance(source, KernelApiLog):
        text = read_end(source.path, LOG_END).decode(errors="replace")
        return complaints((line for line in text.splitlines() if not _is_call(line)), source.path.name)
    return []


def _of_tools(recording: Path) -> list[Complaint]:
    """What compute-sanitizer and cuda-gdb printed, where ``run`` or one of the tools' commands kept it."""
    found: list[Complaint] = []
    for path in sorted((recording / layout.TOOLS).glob("*.txt"))[:MOST_TEXTS]:
        if not is_regular(path):
            continue
        log = ErrorLog(path)
        deque(log.events(lambda count: None), maxlen=0)
        pid = _OF_PROCESS.search(path.stem)
        for told in log.complaints:
            told.pid = told.pid or (int(pid[1]) if pid else 0)
        found += log.complaints
    return found


def _is_call(line: str) -> bool:
    """Whether a line of a kernel API log is its own, not the program's: an exception in it is told of a call."""
    return "Kernel API " in line or line.startswith("  ")


def _running(folders: Mapping[str, Path], history: History) -> dict[str, bool | None]:
    return {
        name: living.is_running(folders[name], process.header)
        for name, process in history.processes.items()
        if name in folders and process.header is not None and process.end is None
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
