"""What a bisection has done so far: one line a finished run, appended and never rewritten.

    {"type":"header","schema":1,"identity":"9f2c…","command":["python","score.py"]}
    {"type":"began","n":1,"pid":4242,"started":881263}
    {"type":"run","n":1,"key":"all off","why":"baseline","variables":{"SGLANG_PLUGINS":"__none__"},"effect":0.0,…}

It lies in the bisection's folder and nowhere else. A run that was cut off has no line of its end, and is done again.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from firstfault.errors import UnreadableInput, UsageError
from firstfault.record.layout import PRIVATE_FILE, PRIVATE_FOLDER
from firstfault.record.schema import Statistic

JOURNAL = "bisect.jsonl"
RUNS = "runs"
SCHEMA = 1


class Header(msgspec.Struct, tag_field="type", tag="header"):
    """What is bisected; ``identity`` differs where another command, probe or option was given."""

    identity: str
    command: list[str]
    schema: int = SCHEMA


class Began(msgspec.Struct, tag_field="type", tag="began"):
    """A run whose process has been started; ``started`` is its start in clock ticks, as in ``/proc``."""

    n: int
    pid: int
    started: int


class Run(msgspec.Struct, tag_field="type", tag="run"):
    """A finished run.

    Attributes:
        n: its number, from 1; its folder is named after it.
        key: the configuration.
        why: what it was done for.
        variables: what its environment had beside the user's; None for what was taken away.
        status: the exit status, negative for a signal.
        effect: how far it is from the baseline; None for a run of the baseline itself, or one without an answer.
        problem: why there is no answer.
        seconds: how long it took.
    """

    n: int
    key: str
    why: str
    variables: dict[str, str | None]
    status: int | None
    effect: Statistic | None
    problem: str
    seconds: float


_decoder = msgspec.json.Decoder(Header | Began | Run)


class Journal:
    """The journal of one folder, opened to go on with it."""

    def __init__(self, folder: Path, identity: str, command: list[str]) -> None:
        """Open the folder's journal, or begin one.

        Raises:
            UsageError: the folder holds something else, or another bisection.
            UnreadableInput: the journal cannot be read.
        """
        self.folder = folder
        self.runs: list[Run] = []
        self.unfinished: list[Began] = []
        path = folder / JOURNAL
        header = self._read(path) if path.exists() else None
        if header is None:
            self._begin(folder, path)
        elif header.identity != identity:
            raise UsageError(
                f"{folder} holds the bisection of another command, or with other options; give another --dir"
            )
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        if header is None:
            self.append(Header(identity, command))

    def append(self, line: Header | Began | Run) -> None:
        """Write one line; it is there when this returns, whatever happens to this process then."""
        os.write(self._fd, msgspec.json.encode(line) + b"\n")
        if isinstance(line, Run):
            self.runs.append(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def run_folder(self, n: int) -> Path:
        """The folder of a run, made new; what a run of this number that was cut off has left goes."""
        folder = self.folder / RUNS / f"{n:04d}"
        if folder.exists():
            for file in sorted(folder.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        for each in (folder.parent, folder):
            each.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        return folder

    def _begin(self, folder: Path, path: Path) -> None:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if any(file != path for file in folder.iterdir()):
            raise UsageError(f"{folder} holds something else than a bisection; give an empty or a new folder")

    def _read(self, path: Path) -> Header | None:
        """Take in what has been done; the end of a torn line is cut off, so that the next one stands by itself."""
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        header = None
        began: dict[int, Began] = {}
        for at, text in enumerate(whole.splitlines(), 1):
            try:
                line = _decoder.decode(text)
            except msgspec.DecodeError as error:
                raise UnreadableInput(f"{path}, line {at}: {error}; give another --dir") from error
            if isinstance(line, Header):
                header = line
            elif isinstance(line, Began):
                began[line.n] = line
            else:
                self.runs.append(line)
                began.pop(line.n, None)
        self.unfinished = list(began.values())
        return header
