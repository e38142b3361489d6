"""PATH → report: read everything that lies there, and conclude."""

from __future__ import annotations

import signal
from pathlib import Path

from firstfault.diagnose import report
from firstfault.errors import UnreadableInput
from firstfault.read.calls import Call, History, tensors
from firstfault.read.events import Advance, Problems
from firstfault.read.formats import torch_archive
from firstfault.read.formats.recording import Recording
from firstfault.read.session import open_source
from firstfault.record import layout


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
    found = report.build(
        history,
        source=str(path),
        kind=source.kind,
        last=last,
        problems=[],
        complete_suspect=lambda call: _read_dump(call, source.problems),
    )
    if isinstance(source, Recording):
        _add_session(found, source)
    found.problems = source.problems.lines()
    return found


def _read_dump(call: Call, problems: Problems) -> None:
    """Statistics of the inputs that only the suspect's dump can tell."""
    path = Path(call.dump) / layout.INPUTS
    if not call.dump or not path.is_file():
        return
    for index, value in enumerate(call.record.args or ()):
        for label, tensor in tensors(f"arg_{index}", value):
            if label == f"arg_{index}" and tensor.min is None and tensor.statistics is None:
                try:
                    torch_archive.statistics(path, label, tensor)
                except UnreadableInput as error:
                    problems.add(str(error))
                    return


def _add_session(found: report.Report, source: Recording) -> None:
    """How the command ended, and what it said last."""
    session = source.session()
    command = session.get("command")
    found.command = [str(word) for word in command] if isinstance(command, list) else []
    found.ended = _ending(session)
    tail = source.stderr_tail().rstrip().splitlines()
    found.stderr = tail[-report.STDERR_LINES :]


def _ending(session: dict[str, object]) -> str:
    number = session.get("signal")
    if isinstance(number, int) and number:
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    status = session.get("exit_status")
    if isinstance(status, int):
        return f"exited with {status}"
    return "no end recorded: it is running still, or firstfault run was killed with it" if session else ""
