"""PATH → report: read everything that lies there, and conclude."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from firstfault.diagnose import living, report
from firstfault.errors import UnreadableInput
from firstfault.read.calls import Call, History
from firstfault.read.events import Advance, Problems
from firstfault.read.files import is_regular
from firstfault.read.formats import marker_page, safetensors_file, torch_archive
from firstfault.read.formats.recording import Recording, process_folders
from firstfault.read.session import open_source
from firstfault.record import layout, progress, schema


def report_on(path: Path, *, last: int, advance: Advance) -> report.Report:
    """The report on what lies at ``path``.

    Args:
        path: a recording, a text log, or a dump folder.
        last: how many of the last calls are listed.
        advance: told of the bytes read.

    Raises:
        UnreadableInput: nothing there can be read.
    """
    source = open_source(path)
    history = History()
    for event in source.events(advance):
        history.feed(event)
    session = source.session() if isinstance(source, Recording) else {}
    found = report.build(
        history,
        source=str(path).encode("utf-8", "backslashreplace").decode(),
        kind=source.kind,
        last=last,
        ending=_ending(session, source, history) if isinstance(source, Recording) else report.Ending(),
        pages=_pages(source) if isinstance(source, Recording) else {},
        complete_call=lambda call: _read_dump(call, path, source.problems),
    )
    if isinstance(source, Recording):
        _add_session(found, source, session)
    found.problems += source.problems.lines()
    return found


def _read_dump(call: Call, source: Path, problems: Problems) -> None:
    """Statistics of the tensors that only the call's dump can tell."""
    if not call.dump:
        return
    record = call.record
    record.args, record.kwargs = _copied(record.args), _copied(record.kwargs)  # equal values are shared
    [call.out] = _copied([call.out])
    for side, tensors in (("inputs", _keyed(record)), ("outputs", _flat("result", call.out))):
        unread = {key: tensor for key, tensor in tensors if tensor.min is None and tensor.statistics is None}
        path = _saved(side, call, source)
        if path is None or not unread:
            continue
        add_statistics = torch_archive.add_statistics if path.suffix == ".pt" else safetensors_file.add_statistics
        try:
            add_statistics(path, unread)
        except UnreadableInput as error:
            problems.add(str(error))


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


def _keyed(record: schema.Call) -> Iterator[tuple[str, schema.Tensor]]:
    """The tensors among the arguments, by the keys under which a dump saves them."""
    for index, value in enumerate(record.args or ()):
        yield from _flat(f"arg_{index}", value)
    for name, value in (record.kwargs or {}).items():
        yield from _flat(f"kwarg_{name}", value)


def _flat(key: str, value: schema.Value) -> Iterator[tuple[str, schema.Tensor]]:
    if isinstance(value, schema.Tensor):
        yield key, value
    elif isinstance(value, schema.Sequence):
        for index, item in enumerate(value.items):
            yield from _flat(f"{key}_{index}", item)
    elif isinstance(value, schema.Mapping):
        for name, item in zip(value.keys, value.values, strict=False):
            yield from _flat(f"{key}_{name if value.fields else name.strip(QUOTES)}", item)


QUOTES = "'\""


def _add_session(found: report.Report, source: Recording, session: dict[str, object]) -> None:
    """How the command ended, and what it said last."""
    command = session.get("command")
    found.command = [str(word) for word in command] if isinstance(command, list) else []
    level = session.get("level")
    found.level = level if isinstance(level, int) else None
    found.modules = session.get("modules") is True
    running = any(process.running for process in found.processes)
    found.ended = _end_in_words(session, running)
    tail = source.stderr_tail().rstrip().splitlines()
    found.stderr = tail[-report.STDERR_LINES :]


def _pages(source: Recording) -> dict[str, progress.Page]:
    """The marker pages of a recording's processes."""
    found = {folder.name: marker_page.find(folder) for folder in process_folders(source.path)}
    return {name: page for name, page in found.items() if page is not None}


def _running(source: Recording, history: History) -> dict[str, bool | None]:
    """Which processes are still there, of those that have not written their end."""
    folders = {folder.name: folder for folder in process_folders(source.path)}
    return {
        name: living.is_running(folders[name], process.header)
        for name, process in history.processes.items()
        if process.header is not None and not process.ended
    }


def _ending(session: dict[str, object], source: Recording, history: History) -> report.Ending:
    status, pid = session.get("exit_status"), session.get("pid")
    killed = isinstance(session.get("signal"), int)
    well = status == 0 and not isinstance(status, bool) and not killed and isinstance(pid, int)
    exited_well = frozenset({pid} if well and isinstance(pid, int) else ())
    failed = not well and report.DEVICE_ERROR.search(source.stderr_tail()) is not None
    return report.Ending(isinstance(status, int) or killed, exited_well, failed, _running(source, history))


def _end_in_words(session: dict[str, object], running: bool) -> str:
    number = session.get("signal")
    if isinstance(number, int) and number:
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    status = session.get("exit_status")
    if isinstance(status, int):
        return f"exited with {status}"
    if not session:
        return ""
    if running:
        return "not yet: it is running"
    if living.run_is_gone(session):
        return "no end recorded: firstfault run was killed with it"
    return "no end recorded: it is running still, or firstfault run was killed with it"
