"""The statistics page of a process: in its folder once it is gone, in shared memory while it lives.

recording/vm-4242/statistics.bin
"""

from __future__ import annotations

from pathlib import Path

from firstfault.read.formats import marker_page
from firstfault.record import layout, statistics_page


def find(folder: Path) -> statistics_page.Page | None:
    """The page of the process whose folder in a recording is ``folder``; None where it left none."""
    return _parsed(folder / layout.STATISTICS) or _parsed(layout.statistics_page(folder))


def collect(recording: Path) -> None:
    """Move the pages of a recording's dead processes from shared memory to where they belong.

    Raises:
        OSError: one cannot be moved; it stays where it is.
    """
    for folder in filter(Path.is_dir, recording.iterdir()):
        path = layout.statistics_page(folder)
        page = _parsed(path)
        if page is not None and not Path(f"/proc/{page.pid}").exists():
            marker_page.move(path, folder / layout.STATISTICS)


def _parsed(path: Path) -> statistics_page.Page | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return statistics_page.parse(file.read(statistics_page.PAGE_BYTES))
    except (OSError, statistics_page.NotAPage):
        return None
