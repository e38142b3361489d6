"""The runner in a process of its own, which ends as the command does."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEADLINE = 60.0
"""Seconds after which a test stops waiting for what should take none."""

DRIVER = """
import os, sys
from pathlib import Path
from firstfault.errors import FirstFaultError
from firstfault.tools import runner
try:
    ending = runner.run(sys.argv[2:], os.environ, Path(sys.argv[1]), lambda pid: None)
except FirstFaultError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
sys.exit(runner.end_like(ending))
"""


def driven(tail: Path, *command: str) -> list[str]:
    """The words that run ``command`` under the runner."""
    return [sys.executable, "-c", DRIVER, str(tail), *command]


def python(code: str) -> list[str]:
    """The words that run ``code``, without the cost of ``site``."""
    return [sys.executable, "-S", "-c", code]


def run(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, stdout and stderr through pipes."""
    return subprocess.run(words, capture_output=True, timeout=DEADLINE, **options)


class Terminal:
    """A terminal of its own, on which a command runs in the foreground."""

    def __init__(self, words: Sequence[str], *, stdout: Any = None) -> None:
        self.master, slave = os.openpty()
        self.shown = b""

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave if stdout is None else stdout, stderr=slave, preexec_fn=take_terminal
        )
        os.close(slave)

    def type(self, keys: bytes) -> None:
        """Type ``keys``."""
        os.write(self.master, keys)

    def until(self, text: bytes) -> None:
        """Wait until ``text`` has been shown."""
        self._read(lambda: text in self.shown, f"{text!r}")

    def ended(self) -> int:
        """Wait for the command's end and that of what it shows; its return code."""
        self._read(lambda: False, "the end")
        os.close(self.master)
        return self.process.wait(DEADLINE)

    def _read(self, enough: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not enough():
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"still waiting for {what}; shown: {self.shown!r}"
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:  # EIO: the last writer is gone
                assert what == "the end", f"ended before it showed {what}: {self.shown!r}"
                return


def read_to_end(fd: int) -> bytes:
    """What comes out of a pipe until its last writer is gone."""
    read = b""
    deadline = time.monotonic() + DEADLINE
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"still waiting for the end after {read!r}"
        if not (data := os.read(fd, 65536)):
            return read
        read += data


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until ``condition()`` gives something true, and give that back."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"still waiting for {what}")
