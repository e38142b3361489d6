"""A server that is started by a command line, and stopped with all that it has started.

    with Launched("python -m sglang.launch_server --port 30000 …", Path("server.log")) as server: …

Engines leave processes behind when they die, and some of them outlive a polite end: whatever was below the server is
looked up before it is asked to stop, and what is left of it is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from types import TracebackType

from firstfault.record.layout import PRIVATE_FILE
from firstfault.tools.children import below
from firstfault.tools.process_group import start_into

_SHELL = "/bin/sh"


class Launched:
    """A running server.

    Args:
        command: a line for the shell.
        log: the file that its stdout and stderr are appended to.

    Raises:
        CannotStart: there is no shell.
        OSError: the log cannot be written.
    """

    def __init__(self, command: str, log: Path) -> None:
        self.log = log
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE), "ab") as file:
            self._begins = file.tell()
            self._group = start_into([_SHELL, "-c", command], os.environ, file, file)

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._group.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._group.wait(0)

    def last_line(self) -> str:
        """The last line of what it wrote, for a word on why it ended."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._begins, size - 4096))
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
            return lines[-1].strip()[:300] if lines else ""
        return ""

    def stop(self) -> None:
        """Ask it and its group to end, and end by force what is left of them, and of those that left the group."""
        left = [handle for pid in below(self.pid) if (handle := _handle(pid)) is not None]
        self._group.end()
        for handle in left:  # a process id may be another's by now, what it stood for then is not
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def _handle(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None
