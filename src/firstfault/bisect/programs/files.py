"""Where a run's output lies.

runs/0007/
    stdout  stderr       what the command wrote
    output.npz           the probe's file, copied from where the command has left it
    answers.jsonl        a server's answers
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firstfault.bisect.probes.probe import FOLDER, Output
from firstfault.record.layout import PRIVATE_FILE

STDOUT, STDERR, ANSWERS, OUTPUT = "stdout", "stderr", "answers.jsonl", "output"
_CUT = 200
_State = tuple[int, int, int] | None


@dataclass(frozen=True)
class ProbeFile:
    """The file that the command writes, and whether this run has written it.

    Attributes:
        path: as it was typed.
        before: what lay there before the run; None for nothing.
    """

    path: str
    before: _State

    def take(self, folder: Path) -> None:
        """Copy what the run has written into its folder, for the next run writes over it."""
        found = _resolved(self.path, folder)
        state = _state(found)
        kept = folder / f"{OUTPUT}{found.suffix}"
        if state is None or state == self.before or found == kept:
            return
        shutil.copyfile(found, kept)
        kept.chmod(PRIVATE_FILE)


def watch(path: str | None, folder: Path) -> ProbeFile | None:
    """Look at the probe's file before a run."""
    if path is None or path == STDOUT:
        return None
    return ProbeFile(path, _state(_resolved(path, folder)))


def output(path: str | None, folder: Path, status: int | None) -> Output:
    """What a run has left in its folder."""
    saved = folder / f"{OUTPUT}{Path(path).suffix}" if path not in (None, STDOUT) else None
    return Output(status, *(file if file and file.exists() else None for file in (saved, *_texts(folder))))


def placed(words: Sequence[str], folder: Path) -> list[str]:
    """A command with the run's folder where it says ``{dir}``."""
    return [word.replace(FOLDER, str(folder)) for word in words]


def last_line(path: Path) -> str:
    """The last line of a text that says something, for a message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:_CUT] for line in reversed(lines) if line.strip()), "")


def _texts(folder: Path) -> tuple[Path, Path]:
    return folder / STDOUT, folder / ANSWERS


def _resolved(path: str, folder: Path) -> Path:
    return Path(path.replace(FOLDER, str(folder)))


def _state(path: Path) -> _State:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
