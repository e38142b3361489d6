"""Start a program, let it end as it does, and ask ``firstfault report`` what happened."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner

from firstfault.cli import app

PROGRAMS = Path(__file__).parent / "programs"
CRASHER = PROGRAMS / "crasher.py"
FIRSTFAULT = [sys.executable, "-c", "from firstfault.cli import main; main()"]
DEADLINE = 90.0
"""Seconds after which a test stops waiting for what should take one."""

T = TypeVar("T")
_OURS = ("FIRSTFAULT_", "SGLANG_", "PYTHONPATH")


def environment(**changes: str) -> dict[str, str]:
    """Our own environment without anything that switches recording on, and ``changes``."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return plain | {"OMP_NUM_THREADS": "1"} | changes


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit status, or the signal's number below zero."""

    pid: int
    status: int
    stdout: str
    stderr: str


class Warm:
    """The other end of ``programs/warm.py``."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        """``before`` are words that the server is started behind, which end in becoming it."""
        self._server = subprocess.Popen(
            [*before, sys.executable, str(PROGRAMS / "warm.py")],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        self.pid = self._server.pid

    def run(self, cwd: Path, *argv: str, **environ: str) -> Ended:
        """Run a program to its end, in the folder ``cwd``."""
        stdout, stderr = cwd / "stdout.txt", cwd / "stderr.txt"
        request = {"argv": argv, "environ": environment(**environ), "cwd": str(cwd)}
        self._send(request | {"stdout": str(stdout), "stderr": str(stderr)})
        answer = self._answer()
        return Ended(answer["pid"], answer["status"], stdout.read_text(), stderr.read_text())

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(DEADLINE)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()

    def _answer(self) -> dict[str, int]:
        """The one line that answers a request: of two, the second could wait in our own buffer, unseen by ``select``."""
        assert self._server.stdout is not None
        ready, _, _ = select.select([self._server.stdout], [], [], DEADLINE)
        assert ready, "the program did not end"
        answer: dict[str, int] = json.loads(self._server.stdout.readline())
        return answer


def firstfault(*words: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ended:
    """Run the command line in a process of its own."""
    started = subprocess.Popen(
        [*FIRSTFAULT, *map(str, words)],
        env=dict(environ or environment()),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stdout, stderr = started.communicate(timeout=DEADLINE)
    return Ended(started.pid, started.returncode, stdout, stderr)


def report(path: Path, *, status: int | None = 0) -> dict[str, Any]:
    """What ``firstfault report PATH --json`` says; ``status`` is what it exits with, None for 0 or 3."""
    done = CliRunner().invoke(app, ["report", str(path), "--json"], catch_exceptions=False)
    assert done.exit_code in ((0, 3) if status is None else (status,)), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def until(condition: Callable[[], T], what: str) -> T:
    """Wait until ``condition()`` gives something true, and give that back."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"still waiting for {what}")
