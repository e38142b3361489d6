"""Python processes of a command that nothing can be recorded in, found from outside.

    {"pid":4242,"command":["python","-I","worker.py"],"why":"-I: it reads no PYTHONPATH"}

Such a process cannot tell by itself: the hook that would is what it does not read. So its relatives are looked at
in ``/proc`` from time to time; one that ends in between is not found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from firstfault.record import layout
from firstfault.settings import OURS

_PROC = Path("/proc")
_OFTEN_SECONDS = 30.0
_SELDOM = 5.0
_LONGEST_COMMAND = 8
_WITH_ARGUMENT = "cmWXQ"
"""Options of Python that are followed by a word, after which come the program's own."""
_WHY = {"I": "reads no PYTHONPATH", "E": "reads no PYTHONPATH", "S": "runs no sitecustomize"}


class Children:
    """The processes below one, each looked at once."""

    def __init__(self, recording: Path, redact: Callable[[list[str]], list[str]]) -> None:
        """``redact`` takes the secrets out of a command."""
        self._redact = redact
        self._unseen = recording / layout.UNSEEN
        self._known: set[tuple[int, str]] = set()
        self._began = time.monotonic()
        self._next = 0.0

    def look(self, pid: int) -> None:
        """Look at what runs below a process, and leave word of what is not recorded; often only at first."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.0 if now - self._began < _OFTEN_SECONDS else _SELDOM)
        for process in (pid, *_below(pid)):
            with contextlib.suppress(OSError, ValueError):
                self._look_at(process)

    def _look_at(self, pid: int) -> None:
        identity = (pid, _text(pid, "stat").rpartition(")")[2].split()[19])  # its start: ids are used again
        words = _words(pid)
        if identity in self._known or not words:
            return
        why = _why_not(pid, words)
        if why is None:
            return  # it may run another program later
        self._known.add(identity)
        line = json.dumps({"pid": pid, "command": self._redact(words)[:_LONGEST_COMMAND], "why": why})
        fd = os.open(self._unseen, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, layout.PRIVATE_FILE)
        with os.fdopen(fd, "wb", buffering=0) as file:
            file.write(line.encode() + b"\n")


def _below(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(_PROC / str(pid) / "task"):
            with contextlib.suppress(OSError):
                for child in (_PROC / str(pid) / "task" / thread / "children").read_text().split():
                    yield int(child)
                    yield from _below(int(child))


def _why_not(pid: int, words: list[str]) -> str | None:
    """Why nothing can be recorded in a process, or None for one that is no Python or can be recorded."""
    try:
        program = os.path.basename(os.readlink(_PROC / str(pid) / "exe"))
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except PermissionError:
        return "it runs as another user" if re.match(r"python[0-9.]*$", os.path.basename(words[0])) else None
    if not re.match(r"python[0-9.]*$", program):
        return None
    for flag in _flags(words[1:]):
        if flag in _WHY:
            return f"-{flag}: it {_WHY[flag]}"
    if environment and f"{OURS}DIR=".encode() not in environment:
        return "it was started without the environment of the command"
    return None


def _flags(words: list[str]) -> Iterator[str]:
    """The one-letter options of Python's own, up to what it is to run."""
    takes_word = False
    for word in words:
        if takes_word:
            takes_word = False
        elif not word.startswith("-") or word in ("-", "--"):
            return
        elif not word.startswith("--"):
            for at, flag in enumerate(word[1:], 2):
                if flag in _WITH_ARGUMENT:
                    if flag in "cm":
                        return
                    takes_word = at == len(word)
                    break
                yield flag


def _words(pid: int) -> list[str]:
    return [word for word in _text(pid, "cmdline").split("\0") if word]


def _text(pid: int, name: str) -> str:
    return (_PROC / str(pid) / name).read_bytes().decode("utf-8", "replace")
