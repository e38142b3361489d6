"""GPU core dumps → what cuda-gdb says of them, in text files that every reader of the recording finds.

recording/coredumps/vm-4242.cudacore   →   recording/tools/cuda-gdb-4242.txt
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from firstfault.errors import FirstFaultError
from firstfault.record import layout
from firstfault.tools import core_dumps, cuda_gdb
from firstfault.tools.captured import captured

SECONDS = 120.0
"""How long cuda-gdb may take for one core dump."""
MOST = 16
"""Core dumps of one recording that are opened: of ranks that fail alike."""


def opened(core: Path, environ: Mapping[str, str]) -> str:
    """What cuda-gdb says of a core dump.

    Raises:
        NotInstalled: there is no cuda-gdb.
        CannotStart: it may not be run.
    """
    with tempfile.TemporaryDirectory(prefix="firstfault-core-") as folder:
        link = Path(folder) / "core"  # its own name may have blanks, or what ends a line
        link.symlink_to(core.absolute())
        done = captured(cuda_gdb.on_core_dump(link, environ), environ, SECONDS)
    ended = f"\n[cuda-gdb did not end within {SECONDS:.0f} s]\n" if done.timed_out else ""
    return done.stdout + done.stderr + ended


def open_all(recording: Path, environ: Mapping[str, str]) -> tuple[list[Path], str]:
    """Open every core dump in a recording; the text files, and why there are not more of them."""
    cores = core_dumps.collected(recording)
    written: list[Path] = []
    try:
        for core in cores[:MOST]:
            text = opened(core, environ)
            written.append(keep(recording, f"cuda-gdb-{core_dumps.pid_of(core)}", text))
    except FirstFaultError as error:
        return written, f"{len(cores)} GPU core dumps are in {recording / layout.CORE_DUMPS}: {error}"
    left = len(cores) - len(written)
    return written, f"{left} more GPU core dumps were not opened" if left else ""


def keep(recording: Path, name: str, text: str) -> Path:
    """Put what a tool printed into a recording, as ``name.txt``."""
    folder = recording / layout.TOOLS
    folder.mkdir(mode=layout.PRIVATE_FOLDER, exist_ok=True)
    path = folder / f"{name}.txt"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, layout.PRIVATE_FILE)
    with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return path
