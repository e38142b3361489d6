"""Where the host and the device of a running process are, from outside it: no signal, no ptrace.

device 0 stream 0x0: the device began moe_align (call 37) and did not complete it; the host got to topk (call 100)
"""

from __future__ import annotations

from pathlib import Path

from firstfault.diagnose.device import positions, sentence
from firstfault.errors import UnreadableInput
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
    if not found:
        raise UnreadableInput(
            f"no process in {recording} has progress markers; they are written once a recorded process uses a GPU"
        )
    return found


def recording_of(pid: int) -> Path:
    """The folder of a living process, by its marker page.

    Raises:
        UnreadableInput: it has none.
    """
    folder = marker_page.folder_of(pid)
    if folder is None:
        raise UnreadableInput(f"process {pid} has no marker page; start it with firstfault run, or give the recording")
    return folder


def _of_process(folder: Path) -> list[str]:
    page = marker_page.find(folder)
    if page is None:
        return []
    history = History()
    for event in Recording(folder).events(lambda count: None):
        history.feed(event)
    process = history.processes.get(folder.name, Process(folder.name))
    return [sentence(position, process.op_of) for position in positions(page, process.marks)]
