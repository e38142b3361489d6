"""The marker page of a process: in its folder once it is gone, in shared memory while it lives.

recording/vm-4242/progress.bin
"""

from __future__ import annotations

from pathlib import Path

from firstfault.record import layout, progress


def find(folder: Path) -> progress.Page | None:
    """The page of the process whose folder in a recording is ``folder``; None where it left none."""
    return _parsed(folder / layout.PROGRESS) or _parsed(layout.marker_page(folder))


def collect(recording: Path) -> None:
    """Move the pages of a recording's dead processes from shared memory to where they belong.

    Raises:
        OSError: one cannot be moved; it stays where it is.
    """
    for folder in filter(Path.is_dir, recording.iterdir()):
        path = layout.marker_page(folder)
        page = _parsed(path)
        if page is None or Path(f"/proc/{page.pid}").exists():
            continue
        kept = folder / layout.PROGRESS
        kept.touch(layout.PRIVATE_FILE)
        kept.write_bytes(path.read_bytes())
        path.unlink()


def _parsed(path: Path) -> progress.Page | None:
    try:
        return progress.parse(path.read_bytes()[: progress.PAGE_BYTES]) if path.is_file() else None
    except (OSError, progress.NotAPage):
        return None


def folder_of(pid: int) -> Path | None:
    """The folder of the living process ``pid`` in its recording, by its page in shared memory."""
    for path in layout.SHARED_MEMORY.glob("firstfault-*"):
        page = _parsed(path)
        if page is not None and page.pid == pid:
            return Path(page.folder)
    return None
