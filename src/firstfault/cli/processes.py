"""``--process``: which process of a source is meant, and a clear word where that is not said.

firstfault: rec holds calls of several processes, vm-1 and vm-2 among them; say which with --process
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from firstfault.errors import UsageError

if TYPE_CHECKING:
    from firstfault.read.events import Advance, Event, Source

MOST_NAMED = 100
PROCESS_HELP = "Which process, where a recording has several."


def of_process(source: Source, process: str | None, advance: Advance) -> Iterator[Event]:
    """The records of one process.

    Raises:
        UsageError: it is not there, or which of several is meant is not said.
    """
    chosen = process
    seen: dict[str, None] = {}
    for event in source.events(advance):
        chosen = chosen or event.process
        if len(seen) < MOST_NAMED or event.process == process:
            seen[event.process] = None
        if event.process == chosen:
            yield event
        elif process is None:
            raise UsageError(
                f"{source.path} holds calls of several processes, {chosen} and {event.process} among them; "
                "say which with --process"
            )
    if process is not None and process not in seen:
        raise UsageError(f"{source.path} holds no process {process!r}; it has {', '.join(seen) or 'none'}")
