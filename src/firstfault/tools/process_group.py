"""A command in a process group of its own, so that it ends with all that it has started.

    with start(["python", "serve.py"], environ, Path("stdout"), Path("stderr")) as group:
        group.wait(30.0)  →  None while it runs, then its exit status, or minus the signal

Launchers start workers that outlive them: ending the group ends those too.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO

from firstfault.record.layout import PRIVATE_FILE
from firstfault.tools.runner import CannotStart

GRACE_SECONDS = 15.0
_POLL_SECONDS = 0.02


class Group:
    """A running command and what it has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.started = start_ticks(process.pid) or 0

    def wait(self, seconds: float | None) -> int | None:
        """The exit status, negative for a signal; None if it still runs after ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """End the whole group: by SIGTERM, and what is left after ``grace`` seconds by SIGKILL."""
        _end(self.pid, grace, self._process.poll)
        self._process.wait()

    def kill(self) -> int:
        """End the whole group by SIGKILL, and wait until none of it runs; the exit status, as ``wait`` gives it."""
        _send(self.pid, signal.SIGKILL, None, self._process.poll)
        return self._process.wait()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()


def start(command: Sequence[str], environ: Mapping[str, str], stdout: Path, stderr: Path) -> Group:
    """Start a command in a session of its own; what it writes goes to two files.

    Raises:
        CannotStart: there is no such program, or it may not be run.
    """
    with _new(stdout) as out, _new(stderr) as err:
        return start_into(command, environ, out, err)


def start_into(command: Sequence[str], environ: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]) -> Group:
    """The same into two open files.

    Raises:
        CannotStart: there is no such program, or it may not be run.
    """
    try:
        process = subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
    except FileNotFoundError:
        raise CannotStart(f"no such program: {command[0]}", 127) from None
    except OSError as error:
        raise CannotStart(f"cannot run {command[0]}: {error.strerror}", 126) from None
    return Group(process)


def end_left_over(pid: int, started: int) -> bool:
    """End the group of a process that somebody has not lived to end; whether it was still there.

    Args:
        pid: the process.
        started: when it was started, by which it is told from another one that has been given its number.
    """
    if not started or start_ticks(pid) != started:
        return False
    _end(pid, GRACE_SECONDS, lambda: None)
    return True


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if there is none."""
    try:
        return int((Path("/proc") / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _end(pid: int, grace: float, reap: Callable[[], object]) -> None:
    if not _send(pid, signal.SIGTERM, grace, reap):
        _send(pid, signal.SIGKILL, None, reap)


def _send(pid: int, number: signal.Signals, seconds: float | None, reap: Callable[[], object]) -> bool:
    """Send a signal to the group, and wait ``seconds``, or as long as it takes, until none of it runs; whether so."""
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
    while _alive(pid, reap):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _alive(pid: int, reap: Callable[[], object]) -> bool:
    """Whether any process of the group still runs; one that has ended and waits to be asked does not."""
    reap()
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return any(_runs(entry, pid) for entry in os.listdir("/proc") if entry.isdigit())


def _runs(entry: str, group: int) -> bool:
    try:
        state, _, its = (Path("/proc") / entry / "stat").read_bytes().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(its) == group and state not in (b"Z", b"X")


def _new(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE), "wb")
