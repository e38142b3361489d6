"""Run one command to its end and keep what it prints.

    captured(["cuda-gdb", "--batch", …], environ, seconds=600)  →  Finished(exit_status=0, stdout=…, stderr=…)

In a process group of its own: where it does not end in time, it is killed with all that it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from firstfault.tools.runner import CannotStart

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
    with (
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):  # a pipe would be held by grandchildren
        try:
            child = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise CannotStart(f"no such program: {command[0]}", 127) from None
        except OSError as error:
            raise CannotStart(f"cannot run {command[0]}: {error.strerror}", 126) from None
        timed_out = False
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            status = _kill(child)
        except BaseException:
            _kill(child)
            raise
        exit_status, number = (status, None) if status >= 0 else (None, -status)
        return Finished(exit_status, number, timed_out, _end(stdout), _end(stderr))


def _kill(child: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _end(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - KEPT))
    return file.read().decode(errors="replace")
