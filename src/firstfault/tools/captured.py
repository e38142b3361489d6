"""Run one command to its end and keep what it prints.

    captured(["cuda-gdb", "--batch", …], environ, seconds=600)  →  Finished(exit_status=0, stdout=…, stderr=…)

In a process group of its own: where it does not end in time, it is killed with all that it has started.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from firstfault.tools.process_group import start_into

KEPT = 2**20
"""Bytes of each stream that are kept, of its end."""


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it printed.

    Attributes:
        exit_status: None where a signal killed it.
        signal: the number of that signal.
        timed_out: whether it was us who killed it.
        stdout, stderr: the end of each.
    """

    exit_status: int | None
    signal: int | None
    timed_out: bool
    stdout: str
    stderr: str


def captured(command: Sequence[str], environ: Mapping[str, str], seconds: float | None = None) -> Finished:
    """Run ``command`` with nothing on its stdin.

    Args:
        command: the program and its arguments.
        environ: its whole environment.
        seconds: how long it may take; None for as long as it does.

    Raises:
        CannotStart: there is no such program, or it may not be run.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:  # grandchildren would hold a pipe
        group = start_into(command, environ, stdout, stderr)
        try:
            status = group.wait(seconds)
        except BaseException:
            group.kill()
            raise
        timed_out = status is None
        status = group.kill() if status is None else status
        exit_status, number = (status, None) if status >= 0 else (None, -status)
        return Finished(exit_status, number, timed_out, _end(stdout), _end(stderr))


def _end(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - KEPT))
    return file.read().decode(errors="replace")
