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
    """A path to read from, which is not only a folder that recordings lie in; of an address a copy of what is there.

    Raises:
        UsageError: it is empty, or which recording is meant is not clear.
        UnreadableInput: an address cannot be reached.
    """
    path = _copy_of(text) if "://" in text or "::" in text else given(text)
    if names := _recordings_in(path):
        listed = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
        count = f"{len(names)} recordings" if len(names) > 1 else "1 recording"
        raise UsageError(f"{path} holds {count}: {listed}; give one")
    return path


def _copy_of(text: str) -> Path:
    """A private copy of what lies at an address, gone at the end, which is said; the path itself if it is none."""
    from firstfault.cli.messages import tell
    from firstfault.read import remote

    if not remote.is_remote(text):
        return given(text)
    copied = remote.fetched(text)
    room = f", without {copied.left_out} dumps that there was no room for" if copied.left_out else ""
    tell(f"copied {copied.files} files of {copied.name}, {copied.nbytes:,} bytes, until this command ends{room}")
    return copied.path


PATH_HELP = (
    "A recording, a kernel API text log, a dump folder, or a text of errors; here, or at an address that fsspec knows."
)
READABLE: Any = typer.Argument(parser=readable, metavar="PATH", help=PATH_HELP)
"""The argument of every command that reads."""


def _recordings_in(path: Path) -> list[str]:
    """The recordings in a folder that is none itself; of those that ``run`` has named the newest first."""
    from firstfault.record.layout import SEGMENTS, SESSION

    if any(any(path.glob(own)) for own in (SESSION, SEGMENTS, f"*/{SEGMENTS}")):
        return []
    within = (found.relative_to(path) for of in (SESSION, f"*/{SEGMENTS}") for found in path.glob(f"*/{of}"))
    return sorted({found.parts[0] for found in within}, reverse=True)
