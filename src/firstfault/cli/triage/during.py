"""What goes on beside a replay: a count on the terminal, a bundle, and an ear for whoever ends it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from firstfault.cli.messages import tell
from firstfault.errors import FirstFaultError

if TYPE_CHECKING:
    from firstfault.serving.replay import Outcome

_JOIN_SECONDS = 60.0


@contextmanager
def counting(total: int) -> Iterator[Callable[[Outcome], None]]:
    """Count requests that have ended, on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda outcome: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = ("replaying", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda outcome: progress.advance(task)


@contextmanager
def ended_politely() -> Iterator[None]:
    """End at SIGTERM as at Ctrl-C: a server that was started here is stopped, and does not keep its port."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Bundle:
    """A bundle of a server, taken in a thread while requests are under way.

    Args:
        base_url: of the server.
        token: for it.
        folder: a new folder; None for no bundle.
    """

    def __init__(self, base_url: str, token: str, folder: Path | None) -> None:
        self._base_url = base_url
        self._token = token
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._error = ""

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def start(self) -> None:
        """Begin, now that there is something to see."""
        if self._folder is not None and self._thread is None:
            self._thread = threading.Thread(target=self._take, args=(self._folder,), daemon=True)
            self._thread.start()

    def told(self) -> str:
        """Where it lies; empty where none was taken, which is told."""
        if self._folder is None:
            return ""
        if self._thread is None or self._error:
            tell(f"no bundle was taken: {self._error or 'nothing was sent'}")
            return ""
        return str(self._folder)

    def _take(self, folder: Path) -> None:
        from firstfault.serving.client import Client
        from firstfault.serving.collect import Plan, collect

        try:
            taken = collect(Client(self._base_url, token=self._token), folder, Plan(interval=2.0), token=self._token)
        except (FirstFaultError, OSError) as error:
            self._error = str(error)
        else:
            for problem in taken.problems:
                tell(f"bundle: {problem}")
