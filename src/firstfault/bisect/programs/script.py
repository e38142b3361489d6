"""A command that runs to its end.

Script(["python", "score.py"], os.environ, Tensors("out.npz"), seconds=None)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstfault.bisect.probes.probe import NoAnswer, Output
from firstfault.bisect.programs import files
from firstfault.bisect.trials import Variables
from firstfault.tools import process_group


@dataclass(frozen=True)
class Script:
    """A command.

    Attributes:
        words: the program and its arguments.
        environ: the user's environment.
        path: the probe's file, if it has one.
        seconds: how long a run may take; None for ever.
    """

    words: Sequence[str]
    environ: Mapping[str, str]
    path: str | None
    seconds: float | None = None

    @property
    def identity(self) -> str:
        """The command, and what of it is looked at."""
        return repr((list(self.words), self.path))

    def run(self, variables: Variables, folder: Path, started: Callable[[int, int], None]) -> Output:
        """Run it to its end.

        Raises:
            NoAnswer: it takes too long.
            CannotStart: there is no such program.
        """
        watched = files.watch(self.path, folder)
        command = files.placed(self.words, folder)
        streams = folder / files.STDOUT, folder / files.STDERR
        with process_group.start(command, changed(self.environ, variables), *streams) as group:
            started(group.pid, group.started)
            status = group.wait(self.seconds)
            if status is None:
                raise NoAnswer(f"it still runs after {self.seconds:g} s")
        if watched is not None:
            watched.take(folder)
        return self.output(folder, status)

    def output(self, folder: Path, status: int | None) -> Output:
        """The output that a run has left."""
        return files.output(self.path, folder, status)


def changed(environ: Mapping[str, str], variables: Variables) -> dict[str, str]:
    """An environment with some variables set and some taken away."""
    kept = {name: value for name, value in environ.items() if name not in variables}
    return {**kept, **{name: value for name, value in variables.items() if value is not None}}
