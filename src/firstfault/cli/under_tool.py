"""What ``sanitize`` and ``gdb`` share: whether a dump or a command is meant, and how a command is recorded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from firstfault.cli.paths import readable
from firstfault.errors import UsageError

if TYPE_CHECKING:
    from firstfault.tools.runner import Ending

WORDS_HELP = "A dump, or a recording with --call; or, after --, a command and its arguments."


class Recorded(NamedTuple):
    """A command that was run under a tool: its recording, the tool's texts, and how it ended."""

    folder: Path
    texts: list[Path]
    ending: Ending


def dump_in(words: Sequence[str]) -> Path | None:
    """The dump or recording that is meant, or None for a command."""
    if len(words) != 1 or (shutil.which(words[0]) is not None and not Path(words[0]).is_dir()):
        return None
    return readable(words[0])


def recorded(
    words: Sequence[str],
    level: int | None,
    folder: Path | None,
    under: Callable[[Path, Sequence[str]], list[str]],
    variables: Mapping[str, str],
) -> Recorded:
    """Run a command under a tool and record it.

    Args:
        words: the command.
        level: how much is recorded; the environment's where it is None, else 3.
        folder: of the recording.
        under: the folder for the tool's texts and the command → the command line with the tool before it.
        variables: that are added to its environment.
    """
    from firstfault.cli import session
    from firstfault.record import layout
    from firstfault.tools import runner

    if not words:
        raise UsageError("give a dump, or a command after --")
    chosen = session.chosen(os.environ, level=level, folder=folder)
    recording = session.create(chosen, list(words))
    texts = recording.folder / layout.TOOLS
    texts.mkdir(mode=layout.PRIVATE_FOLDER, exist_ok=True)
    environ = session.environment(os.environ, recording.folder, chosen) | dict(variables)
    ending = runner.run(
        under(texts.absolute(), words), environ, recording.folder / session.STDERR_TAIL, lambda pid: None
    )
    recording.close(ending)
    return Recorded(recording.folder, sorted(texts.glob("*.txt")), ending)
