"""The statistics page of a process: its older entries in its folder, and the last ones too once it is gone.

recording/vm-4242/statistics.bin
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

from firstfault.errors import UnreadableInput
from firstfault.read.files import exists, open_regular
from firstfault.record import layout, statistics_page
from firstfault.record.layout import PRIVATE_FILE
from firstfault.record.marker_files import own_bytes
from firstfault.record.statistics_page import ENTRY_BYTES, HEADER_BYTES, Entry, Statistics

_CHUNK = 4096 * ENTRY_BYTES
_CHUNKS = 4
"""Pieces of the file that are remembered: threads may write their calls down in another order than their tensors."""


class Readings:
    """The statistics of one process by token, looked up about in the order of the tokens, in constant memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._opened = False
        self._chunks: deque[dict[int, Entry]] = deque(maxlen=_CHUNKS)
        self._newest = 0
        self._page: dict[int, Entry] | None = None

    def refresh(self) -> None:
        """Look at the page of a living process anew: it goes on."""
        self._page = None

    def exist(self) -> bool:
        """Whether the device has written any by now."""
        return exists(self._folder / layout.STATISTICS) or layout.statistics_page(self._folder).exists()

    def find(self, token: int) -> Statistics | None:
        """The statistics that ``token`` names; None where the device has not got there, or nothing was there."""
        found = self.entry(token)
        return None if found is None else found.statistics

    def entry(self, token: int) -> Entry | None:
        """What ``token`` names; None where the device has not got there."""
        while self._newest < token and self._advance():
            pass
        for entries in (*reversed(self._chunks), self._last_entries()):
            if (entry := entries.get(token)) is not None:
                return entry
        return None

    def _advance(self) -> bool:
        """Read one more piece of the file; False at its end."""
        if not self._opened:
            self._opened = True
            self._file = _opened(self._folder / layout.STATISTICS)
        if self._file is None:
            return False
        at = self._file.tell()
        data = self._file.read(_CHUNK)
        if len(data) < ENTRY_BYTES:
            self._file.seek(at)  # more may come
            return False
        self._file.seek(at + len(data) // ENTRY_BYTES * ENTRY_BYTES)
        entries = statistics_page.parse_entries(data)
        self._chunks.append(entries)
        self._newest = max(self._newest, *entries, 0)
        return True

    def _last_entries(self) -> dict[int, Entry]:
        if self._page is None:
            found = _parsed(layout.statistics_page(self._folder))
            self._page = found.entries if found is not None else {}
        return self._page


def collect(recording: Path) -> None:
    """Add the last entries of a recording's dead processes from shared memory to those in their folders.

    Raises:
        OSError: they cannot be; the page stays where it is.
    """
    for folder in filter(Path.is_dir, recording.iterdir()):
        path = layout.statistics_page(folder)
        page = _parsed(path)
        if page is None or Path(f"/proc/{page.pid}").exists():
            continue
        kept = folder / layout.STATISTICS
        kept.touch(PRIVATE_FILE)
        with kept.open("ab") as file:
            size = os.fstat(file.fileno()).st_size
            whole = size - (size - HEADER_BYTES) % ENTRY_BYTES if size > HEADER_BYTES else 0
            file.truncate(whole)  # a process that is killed may leave half an entry
            data = own_bytes(path, statistics_page.PAGE_BYTES)
            file.write(_in_order(data) if whole else data[:HEADER_BYTES] + _in_order(data))
        path.unlink()


def _in_order(data: bytes) -> bytes:
    """The entries of a page by their tokens, for it is a ring."""
    offsets = range(HEADER_BYTES, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES)
    entries = [(int.from_bytes(data[at : at + 8], "little"), data[at : at + ENTRY_BYTES]) for at in offsets]
    return b"".join(entry for token, entry in sorted(entries) if token)


def _opened(path: Path) -> BinaryIO | None:
    """The file behind its header; None where there is none that can be read."""
    try:
        file = open_regular(path)
        statistics_page.parse(file.read(HEADER_BYTES))
    except (OSError, UnreadableInput, statistics_page.NotAPage):
        return None
    return file


def _parsed(path: Path) -> statistics_page.Page | None:
    data = own_bytes(path, statistics_page.PAGE_BYTES)
    try:
        return statistics_page.parse(data) if data else None
    except statistics_page.NotAPage:
        return None
