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
_PYTHON = re.compile(r"python[0-9.]*$")
_OFTEN_SECONDS = 30.0
_SELDOM = 5.0
_LONGEST_COMMAND = 8
_LONGEST_WORD = 200
_WITH_ARGUMENT = "cmWXQ"
"""Options of Python that are followed by a word, after which come the program's own."""
_WHY = {"I": "reads no PYTHONPATH", "E": "reads no PYTHONPATH", "S": "runs no sitecustomize"}


class Children:
    """The processes below one, each looked at once."""

    def __init__(self, recording: Path, hook: str, redact: Callable[[list[str]], list[str]]) -> None:
        """``hook`` is the folder on ``PYTHONPATH`` that recording begins in; ``redact`` takes secrets out of words."""
        self._hook = hook
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
        for process in (pid, *below(pid)):
            with contextlib.suppress(OSError, ValueError, LookupError):
                self._look_at(process)

    def _look_at(self, pid: int) -> None:
        identity = (pid, _text(pid, "stat").rpartition(")")[2].split()[19])  # its start: ids are used again
        words = _words(pid)
        if identity in self._known or not words:
            return
        why = _why_not(pid, words, self._hook)
        if why is None or _words(pid) != words:
            return  # it may run another program later, or has begun to between two looks at it
        self._known.add(identity)
        command = [word[:_LONGEST_WORD] for word in self._redact(words[:_LONGEST_COMMAND])]
        line = json.dumps({"pid": pid, "command": command, "why": why})
        fd = os.open(self._unseen, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, layout.PRIVATE_FILE)
        with os.fdopen(fd, "wb", buffering=0) as file:
            file.write(line.encode() + b"\n")


def below(pid: int) -> Iterator[int]:
    """The processes that one has started, and those that they have, as far as they are still there."""
    left = [pid]
    while left:
        tasks = _PROC / str(left.pop()) / "task"
        with contextlib.suppress(OSError):
            for thread in os.listdir(tasks):
                with contextlib.suppress(OSError):
                    children = [int(child) for child in (tasks / thread / "children").read_text().split()]
                    yield from children
                    left += children


def _why_not(pid: int, words: list[str], hook: str) -> str | None:
    """Why nothing can be recorded in a process, or None for one that is no Python or can be recorded."""
    try:
        program = os.path.basename(os.readlink(_PROC / str(pid) / "exe"))
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except PermissionError:
        return "it runs as another user" if _PYTHON.match(os.path.basename(words[0])) else None
    if not _PYTHON.match(program):
        return None
    for flag in _flags(words[1:]):
        if flag in _WHY:
            return f"-{flag}: it {_WHY[flag]}"
    if not _PYTHON.match(os.path.basename(words[0])):
        return None  # a title that it gave itself overwrites the environment that others see
    variables = dict(word.split(b"=", 1) for word in environment if b"=" in word)
    if not variables:
        return None  # it is gone, or has not begun
    if f"{OURS}DIR".encode() not in variables:
        return "it was started without the environment of the command"
    if os.fsencode(hook) not in variables.get(b"PYTHONPATH", b"").split(os.pathsep.encode()):
        return "it was started with a PYTHONPATH that recording is not on"
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
