"""Where the host and the device of a running process are, from outside it: no signal, no ptrace.

device 0 stream 0x0: the device began moe_align (call 37) and did not complete it; the host got to topk (call 100)
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NoReturn

from firstfault import settings
from firstfault.diagnose.device import positions, sentence
from firstfault.errors import SettingError, UnreadableInput
from firstfault.read.calls import History, Process
from firstfault.read.formats import marker_page
from firstfault.read.formats.recording import Recording, process_folders


def standings(recording: Path) -> list[tuple[str, str]]:
    """Process and sentence: where every stream of every process of a recording stands now, or stood when it died.

    Raises:
        UnreadableInput: there is no recording, or none of its processes has used a GPU.
    """
    try:
        folders = process_folders(recording)
    except OSError as error:
        raise UnreadableInput(f"cannot read {recording}: {error.strerror}") from error
    found = [(folder.name, sentence) for folder in folders for sentence in _of_process(folder)]
    if not folders:
        raise UnreadableInput(f"{recording} holds no recorded process; give a recording in which a call was recorded")
    if not found:
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


def _of_process(folder: Path) -> list[str]:
    page = marker_page.find(folder)
    if page is None:
        return []
    history = History()
    for event in Recording(folder).events(lambda count: None):
        history.feed(event)
    process = history.processes.get(folder.name, Process(folder.name))
    return [sentence(position, process.op_of) for position in positions(page, process.marks)]
