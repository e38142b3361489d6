"""File names of a recording: where everything lies, for writer and reader alike.

recording/
    session.json                 the command, its versions, its end
    stderr.tail                  the end of what it wrote to stderr
    unseen.jsonl                 Python processes of the command that nothing could be recorded in, and why
    coredumps/                   GPU core dumps, with --coredump
    tools/                       what compute-sanitizer and cuda-gdb printed of it, a text file each
    <host>-<pid>/
        calls.0001.jsonl         one record a line, header first
        contracts.jsonl          what the program declared of arguments, for the operators that it has called
        statistics.bin           what the device read by itself, with FIRSTFAULT_STATS=async
        progress.bin             the marker page, once the process is gone
        dumps/<dump>/            inputs.pt, outputs.pt, metadata.json
"""

from __future__ import annotations

import re
from pathlib import Path

SESSION = "session.json"
STDERR_TAIL = "stderr.tail"
UNSEEN = "unseen.jsonl"
CONTRACTS = "contracts.jsonl"
DUMPS = "dumps"
CORE_DUMPS = "coredumps"
TOOLS = "tools"
PROGRESS = "progress.bin"
STATISTICS = "statistics.bin"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
SEGMENTS = "calls.*.jsonl"
INPUTS = "inputs.pt"
OUTPUTS = "outputs.pt"
METADATA = "metadata.json"

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
"""Recordings hold users' data: nobody else may read them."""

_DUMP_NAME = re.compile(r"(?P<timestamp>\d{8}_\d{6}_\d{3})_pid(?P<pid>\d+)_(?P<op>.+)_call(?P<index>\d{4,})")
_UNSAFE = re.compile(r"[/\\<>\0\s]")
_LONGEST_OP = 150  # with stamp, pid and index a name stays below the 255 bytes that file systems allow


def process_folder(recording: Path, host: str, pid: int) -> Path:
    """The folder of one process; a second process of the same id gets a suffix."""
    folder = recording / f"{host}-{pid}"
    again = 2
    while folder.exists():
        folder = recording / f"{host}-{pid}-{again}"
        again += 1
    return folder


def segment(folder: Path, index: int) -> Path:
    """The ``index``-th segment of a process's calls, from 1."""
    return folder / f"calls.{index:04d}.jsonl"


def marker_page(folder: Path) -> Path:
    """Where the marker page of the process of ``folder`` lies while it lives."""
    return _shared(folder, "")


def statistics_page(folder: Path) -> Path:
    """Where the statistics page of the process of ``folder`` lies while it lives."""
    return _shared(folder, "statistics-")


def _shared(folder: Path, kind: str) -> Path:
    recording = folder.parent.stat()
    return SHARED_MEMORY / f"firstfault-{kind}{recording.st_dev:x}-{recording.st_ino:x}-{folder.name}"


def dump_name(timestamp: str, pid: int, op: str, index: int) -> str:
    """The folder name of one dump, ``20260319_004821_182_pid919286_RMSNorm.forward_call0001``."""
    safe = _UNSAFE.sub("_", op).encode()[:_LONGEST_OP].decode(errors="ignore")
    return f"{timestamp}_pid{pid}_{safe}_call{index:04d}"


def parse_dump_name(name: str) -> tuple[str, int, str, int] | None:
    """Timestamp, process id, op and call index of a dump folder's name, or None if it is not one."""
    match = _DUMP_NAME.fullmatch(name)
    return (match["timestamp"], int(match["pid"]), match["op"], int(match["index"])) if match else None
