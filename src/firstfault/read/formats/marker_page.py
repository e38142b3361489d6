"""The marker page of a process: in its folder once it is gone, in shared memory while it lives.

recording/vm-4242/progress.bin
"""

from __future__ import annotations

from pathlib import Path

from firstfault.record import layout, progress


def find(folder: Path) -> progress.Page | None:
    """The page of the process whose folder in a recording is ``folder``; None where it left none."""
    for path in (folder / layout.PROGRESS, layout.marker_page(folder)):
        try:
            if path.is_file():
                return progress.parse(path.read_bytes()[: progress.PAGE_BYTES])
        except (OSError, progress.NotAPage):
            continue
    return None


def collect(recording: Path) -> None:
    """Move the pages of a recording's dead processes from shared memory to where they belong."""
    for folder in filter(Path.is_dir, recording.iterdir()):
        page = layout.marker_page(folder)
        if not page.is_file():
            continue
        (folder / layout.PROGRESS).write_bytes(page.read_bytes())
        (folder / layout.PROGRESS).chmod(layout.PRIVATE_FILE)
        page.unlink()


def folder_of(pid: int) -> Path | None:
    """The folder of the living process ``pid`` in its recording, by its page in shared memory."""
    for path in layout.SHARED_MEMORY.glob("firstfault-*"):
        try:
            page = progress.parse(path.read_bytes()[: progress.PAGE_BYTES])
        except (OSError, progress.NotAPage):
            continue
        if page.pid == pid:
            return Path(page.folder)
    return None
