"""PATH on the command line: the same for every command, and a clear word where it is none.

firstfault: . holds 2 recordings: first, second; give one
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from firstfault.errors import UsageError

MOST_NAMED = 5


def given(text: str) -> Path:
    """A path that was typed.

    Raises:
        UsageError: it is empty, as an unset variable of the shell is; Python would take it for this folder.
    """
    if not text:
        raise UsageError("the path is empty; give one, or . for this folder")
    return Path(text)


def readable(text: str) -> Path:
    """A path to read from, which is not only a folder that recordings lie in.

    Raises:
        UsageError: it is empty, or which recording is meant is not clear.
    """
    path = given(text)
    if names := _recordings_in(path):
        listed = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
        count = f"{len(names)} recordings" if len(names) > 1 else "1 recording"
        raise UsageError(f"{path} holds {count}: {listed}; give one")
    return path


READABLE: Any = typer.Argument(
    parser=readable, metavar="PATH", help="A recording, a kernel API text log, a dump folder, or a text of errors."
)
"""The argument of every command that reads."""


def _recordings_in(path: Path) -> list[str]:
    """The recordings in a folder that is none itself; of those that ``run`` has named the newest first."""
    from firstfault.record.layout import SEGMENTS, SESSION

    if any(any(path.glob(own)) for own in (SESSION, SEGMENTS, f"*/{SEGMENTS}")):
        return []
    within = (found.relative_to(path) for of in (SESSION, f"*/{SEGMENTS}") for found in path.glob(f"*/{of}"))
    return sorted({found.parts[0] for found in within}, reverse=True)
