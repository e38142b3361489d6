"""Files that hold no calls but say what failed: stderr, server logs, the output of tools.

open_source(Path("server.log"))  →  ErrorLog, whose complaints say what failed, where and how often
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from firstfault.read.events import Advance, Event, Problems
from firstfault.read.files import open_regular
from firstfault.read.formats.complaint import Complaint, Complaints, Parser
from firstfault.read.formats.coredump_log import CoredumpLog
from firstfault.read.formats.cuda_gdb_text import CudaGdbText
from firstfault.read.formats.errors_text import ErrorsText
from firstfault.read.formats.sanitizer_text import SanitizerText

LONGEST_LINE = 4096
"""Bytes of a line that are looked at."""
SNIFFED = 64 * 2**20


class ErrorLog:
    """A text of errors; it yields no records."""

    kind = "error output"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self.complaints: list[Complaint] = []

    def events(self, advance: Advance) -> Iterator[Event]:
        """Read it for its complaints."""
        with open_regular(self.path) as file:
            self.complaints = complaints(_lines(file, advance), self.path.name)
        yield from ()


def is_error_log(path: Path) -> bool:
    """Whether the first 64 MiB of a file hold a complaint.

    Raises:
        UnreadableInput: it cannot be opened, or is no regular file.
    """
    read = 0

    def count(more: int) -> None:
        nonlocal read
        read += more

    found = Complaints()
    parsers = _parsers(found)
    with open_regular(path) as file:
        for number, line in enumerate(_lines(file, count), 1):
            for parser in parsers:
                parser.take(number, line)
            if found.every or read > SNIFFED:
                break
    for parser in parsers:
        parser.end()
    return bool(found.every)


def complaints(lines: Iterable[str], source: str) -> list[Complaint]:
    """What some lines complain of; tools and programs may write between each other's."""
    found = Complaints()
    parsers = _parsers(found)
    for number, line in enumerate(lines, 1):
        for parser in parsers:
            parser.take(number, line)
    for parser in parsers:
        parser.end()
    for told in found.every:
        told.source = source
    return found.every


def _parsers(found: Complaints) -> list[Parser]:
    return [ErrorsText(found), SanitizerText(found), CudaGdbText(found), CoredumpLog(found)]


def _lines(file: BinaryIO, advance: Advance) -> Iterator[str]:
    """The lines of a file, each cut at a length that none of interest has."""
    while line := file.readline(LONGEST_LINE):
        advance(len(line))
        yield line.decode(errors="replace").rstrip("\r\n")
        while not line.endswith(b"\n") and (line := file.readline(LONGEST_LINE * 16)):
            advance(len(line))
