"""``firstfault run -- COMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.settings import LEVEL_FORMS

CONTEXT = {"allow_interspersed_args": False}
LEVEL_HELP = f"How much is recorded: {LEVEL_FORMS}; FIRSTFAULT_LOGLEVEL if that is set, else 3."
DIR_HELP = "The folder for the recording, new or empty; FIRSTFAULT_DIR if that is set, else firstfault-DATE-TIME-PID."
NAN_HELP = "Stop the command once a call gives NaN for inputs without; needs --level 5 or 10."
MODULES_HELP = "Record every torch.nn.Module by its qualified name; so does FIRSTFAULT_MODULES=1."


def command(
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    level: Annotated[int | None, typer.Option(help=LEVEL_HELP)] = None,
    dir: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=DIR_HELP)] = None,  # noqa: A002
    modules: Annotated[bool, typer.Option("--modules", help=MODULES_HELP)] = False,
    stop_on_nan: Annotated[bool, typer.Option("--stop-on-nan", help=NAN_HELP)] = False,
) -> None:
    """Run a command with recording on; when it dies, print the report.

    Ends as the command does: with its exit status, or by the signal that killed it. One that goes well has stdout
    and stderr to itself; its recording lies where --dir says.
    """
    from firstfault.cli import session
    from firstfault.tools import runner

    chosen = session.chosen(os.environ, level=level, folder=dir, modules=modules, stop_on_nan=stop_on_nan)
    recording = session.create(chosen, words)
    environ = session.environment(os.environ, recording.folder, chosen)
    try:
        ending = runner.run(words, environ, recording.folder / session.STDERR_TAIL)
    except runner.CannotStart:
        recording.discard()
        raise
    recording.close(ending)
    # Of a command that goes well not even the folder is named: scripts read its stderr, and it is to stay as it was.
    if ending.abnormal and sys.stderr is not None:
        _report(recording.folder)
    raise typer.Exit(runner.end_like(ending))


def _report(recording: Path) -> None:
    """Print the report to stderr: stdout is the command's, and so is the way in which this process ends."""
    from firstfault.diagnose.investigate import report_on
    from firstfault.present import terminal
    from firstfault.read.evidence import gather

    try:
        found = report_on(gather(recording, lambda count: None), last=5)
        found.stderr = []  # the user has just seen it
        sys.stderr.write("\n")
        terminal.show(found, sys.stderr)
        sys.stderr.flush()
    except OSError:  # nobody reads our stderr: what is left of it must not turn into an exit status of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except (Exception, KeyboardInterrupt) as error:
        tell(f"no report ({str(error) or type(error).__name__})")
