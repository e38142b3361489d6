"""``firstfault run -- COMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from firstfault.settings import LEVEL_FORMS

CONTEXT = {"allow_interspersed_args": False}


def command(
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    level: Annotated[int, typer.Option(help=f"How much is recorded: {LEVEL_FORMS}.")] = 3,
    dir: Annotated[Path | None, typer.Option(help="The folder for the recording, new or empty.")] = None,  # noqa: A002
    modules: Annotated[bool, typer.Option(help="Record every torch.nn.Module by its qualified name.")] = False,
    stop_on_nan: Annotated[
        bool, typer.Option("--stop-on-nan", help="Stop the command once a call gives NaN for inputs without.")
    ] = False,
) -> None:
    """Run a command with recording on; when it dies, print the report.

    Ends as the command does: with its exit status, or by the signal that killed it.
    """
    from firstfault.cli import session
    from firstfault.tools import runner

    session.check_level(level, stop_on_nan=stop_on_nan)
    recording = session.create(dir, words)
    environ = session.environment(os.environ, recording.folder, level=level, modules=modules, stop_on_nan=stop_on_nan)
    try:
        ending = runner.run(words, environ, recording.folder / session.STDERR_TAIL)
    except runner.CannotStart:
        recording.discard()
        raise
    recording.close(ending)
    if ending.abnormal and sys.stderr is not None:
        _report(recording.folder)
    raise typer.Exit(runner.end_like(ending))


def _report(recording: Path) -> None:
    """Print the report to stderr: stdout is the command's, and so is the way in which this process ends."""
    from firstfault.diagnose import investigate
    from firstfault.present import terminal

    try:
        found = investigate.report_on(recording, last=5, advance=lambda count: None)
        found.stderr = []  # the user has just seen it
        sys.stderr.write("\n")
        terminal.show(found, sys.stderr)
        sys.stderr.flush()
    except OSError:  # nobody reads our stderr: what is left of it must not turn into an exit status of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except (Exception, KeyboardInterrupt) as error:
        print(f"firstfault: no report ({error or type(error).__name__})", file=sys.stderr)
