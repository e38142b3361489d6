"""What can be read of a running process from outside it: no signal, no ptrace.

recording_of(4242)  →  Path("firstfault-20260319-004821-4241")
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple, NoReturn

from firstfault import settings
from firstfault.errors import SettingError, UnreadableInput
from firstfault.read.formats import marker_page
from firstfault.read.formats.recording import Recording, process_folders
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.record import progress


class Marked(NamedTuple):
    """A process with what its device has marked."""

    process: Process
    page: progress.Page


def marked(recording: Path) -> list[Marked]:
    """The processes of a recording that have a marker page.

    Raises:
        UnreadableInput: there is no recording, or no process in it has one.
    """
    try:
        folders = process_folders(recording)
    except OSError as error:
        raise UnreadableInput(f"cannot read {recording}: {error.strerror}") from error
    if not folders:
        raise UnreadableInput(f"{recording} holds no recorded process; give a recording in which a call was recorded")
    pages = {folder: marker_page.find(folder) for folder in folders}
    found = [Marked(_process(folder), page) for folder, page in pages.items() if page is not None]
    if not any(slot.kind == progress.STREAM and slot.enqueued for _, page in found for slot in page.slots):
        raise _no_markers(f"no process in {recording} has used a GPU", recording)
    return found


def recording_of(pid: int) -> Path:
    """The folder of a process, by its marker page.

    Raises:
        UnreadableInput: it has none, and why.
    """
    return marker_page.folder_of(pid) or _without_markers(pid)


def _without_markers(pid: int) -> NoReturn:
    try:
        recording = _told_to_record(Path(f"/proc/{pid}"))
    except (FileNotFoundError, ProcessLookupError):
        raise UnreadableInput(f"no process {pid}; give the recording of one that is gone") from None
    except OSError as error:
        raise UnreadableInput(f"cannot look at process {pid}: {error.strerror}; give its recording") from None
    if recording is None:
        raise UnreadableInput(f"process {pid} is not recorded; start it with firstfault run")
    if not any(recording.glob(f"*-{pid}")):
        raise UnreadableInput(f"process {pid} has called no boundary yet that would be recorded to {recording}")
    raise _no_markers(f"process {pid} has used no GPU yet", recording)


def _told_to_record(process: Path) -> Path | None:
    """Where the environment that a process was started in tells it to record to.

    Raises:
        OSError: it is gone, or another user's.
    """
    variables = (variable.partition("=") for variable in os.fsdecode((process / "environ").read_bytes()).split("\0"))
    try:
        chosen = settings.parse({name: value for name, _, value in variables})
    except SettingError:  # which switches recording off
        return None
    if chosen.level is settings.Level.OFF or chosen.recording is None:
        return None
    return (process / "cwd").readlink() / chosen.recording


def _no_markers(why: str, recording: Path) -> UnreadableInput:
    report = f"firstfault report {shlex.quote(str(recording))}"
    return UnreadableInput(f"{why}, so there are no markers; its host position: {report}")


def _process(folder: Path) -> Process:
    history = History()
    for event in Recording(folder).events(lambda count: None):
        history.feed(event)
    return history.processes.get(folder.name, Process(folder.name))
