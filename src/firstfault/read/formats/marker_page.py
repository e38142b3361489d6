"""The marker page of a process: in its folder once it is gone, in shared memory while it lives.

recording/vm-4242/progress.bin
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from firstfault.errors import UnreadableInput
from firstfault.read.files import is_regular, read_end
from firstfault.record import layout, marker_files, progress


def find(folder: Path) -> progress.Page | None:
    """The page of the process whose folder in a recording is ``folder``; None where it left none."""
    kept = folder / layout.PROGRESS
    if is_regular(kept):
        with suppress(UnreadableInput, progress.NotAPage):
            return progress.parse(read_end(kept, progress.PAGE_BYTES))
    return marker_files.read(layout.marker_page(folder))


def folder_of(pid: int) -> Path | None:
    """The folder of the living process ``pid`` in its recording, by its page in shared memory."""
    return next((Path(page.folder) for page in marker_files.living() if page.pid == pid), None)
