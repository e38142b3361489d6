"""Which processes of a recording are still there, told by what each of them holds open.

    vm-4242 has calls.0003.jsonl open: it is running

A process id alone may belong to another process by now, and wall clocks are set back and forth.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from firstfault.read.events import Event
from firstfault.read.formats.recording import Recording, process_folders
from firstfault.record import layout, schema


def this_host() -> str:
    """The name of this host as a recording has it."""
    return os.uname().nodename.split(".")[0]


def is_running(folder: Path, header: schema.Header) -> bool | None:
    """Whether the process that writes to ``folder`` is still there; None where it cannot be told from here."""
    if header.host != this_host():
        return None
    process = Path(f"/proc/{header.pid}")
    try:
        segments = [found for segment in folder.glob(layout.SEGMENTS) if (found := _stat(segment)) is not None]
        return any(_leads_to(descriptor, segments) for descriptor in (process / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:  # of another user, as is what a process that nobody has waited for leaves behind
        return False if _is_zombie(process) else None


def _stat(segment: Path) -> os.stat_result | None:
    """What a segment is; None where a ring has just dropped it."""
    try:
        return segment.stat()
    except FileNotFoundError:
        return None


def run_is_gone(session: Mapping[str, object]) -> bool | None:
    """Whether the ``firstfault run`` of a session is gone; None where it cannot be told from here."""
    pid = session.get("run_pid")
    if not isinstance(pid, int) or session.get("host") != os.uname().nodename:
        return None
    return not Path(f"/proc/{pid}").exists()


class Ends:
    """Whether anything can still be added to a recording that is being followed."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._open: dict[str, schema.Header] = {}
        self._begun = False

    def take(self, events: Iterable[Event]) -> None:
        """Note which processes have begun and ended."""
        for event in events:
            if isinstance(event.record, schema.Header):
                self._open[event.process] = event.record
                self._begun = True
            elif isinstance(event.record, schema.End):
                self._open.pop(event.process, None)

    def all_over(self) -> bool:
        """Whether its session says that the command ended, or all its processes have ended and none is to come."""
        session = self._recording.session()
        if "ended" in session:
            return True
        if not self._begun or run_is_gone(session) is False:
            return False
        folders = {folder.name: folder for folder in process_folders(self._recording.path)}
        return all(is_running(folders[name], header) is False for name, header in self._open.items())


def _leads_to(descriptor: Path, files: Iterable[os.stat_result]) -> bool:
    try:
        found = descriptor.stat()
    except OSError:  # closed in the meantime
        return False
    return any(os.path.samestat(found, file) for file in files)


def _is_zombie(process: Path) -> bool:
    try:
        return "\nState:\tZ" in (process / "status").read_text()
    except OSError:
        return True
