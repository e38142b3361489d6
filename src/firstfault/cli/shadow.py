"""``firstfault shadow -- COMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.tools.runner import Ending

CONTEXT = {"allow_interspersed_args": False}
OPS_HELP = "What is compared: shell-style patterns with commas between, rms_norm or 'aten::*'; all if left out."
TOLERANCE_HELP = "What an error relative to the value and its tensor's mean magnitude may be; by dtype if left out."
DIR_HELP = "The folder for what is found, new or empty; firstfault-DATE-TIME-PID if left out."
SHOW_HELP = "Show what an earlier run has found in its folder, and run nothing."


def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The command.")] = None,
    ops: Annotated[str, typer.Option(metavar="<patterns>", help=OPS_HELP)] = "",
    tolerance: Annotated[float | None, typer.Option(help=TOLERANCE_HELP)] = None,
    dir: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=DIR_HELP)] = None,  # noqa: A002
    show: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=SHOW_HELP)] = None,
    json: Annotated[
        bool, typer.Option("--json", help="For machines; the command's own output goes to stderr.")
    ] = False,
) -> None:
    """Run a command, and beside each dispatched call its reference on the same inputs: how far they are apart.

    Backends are what the environment asks for (SGLANG_FL_*, USE_FLAGGEMS), flagos if it asks for nothing. The command
    goes on with their results. Of each operator and replaced ATen operator the errors are shown, and the call of the
    worst one is saved as a dump.

    Exits with 0 when all compared calls are within their tolerance, 1 when one is not, 3 when no call was compared or
    the command failed.
    """
    if (words is None) == (show is None):
        raise UsageError("give a command behind --, or --show with the folder of an earlier run")
    ending = None
    if words is not None:
        show, ending = _run(words, ops, tolerance, dir, json)
    assert show is not None
    status = _tell(show, json)
    if ending is not None and ending.abnormal:
        how = f"signal {ending.signal}" if ending.signal else f"exit status {ending.exit_status}"
        tell(f"the command ended with {how}; what it did before is compared")
        status = status or ExitCode.INCOMPLETE
    raise typer.Exit(status)


def _run(words: list[str], ops: str, tolerance: float | None, folder: Path | None, json: bool) -> tuple[Path, Ending]:
    from firstfault.cli import session
    from firstfault.settings import Level
    from firstfault.tools import runner

    asked = {
        "FIRSTFAULT_SHADOW_OPS": ops,
        "FIRSTFAULT_SHADOW_TOLERANCE": "" if tolerance is None else str(tolerance),
    }
    environ = session.with_hook(os.environ) | asked
    _check(environ)
    recording = session.create(session.chosen(os.environ, level=Level.OFF, folder=folder), words)
    environ["FIRSTFAULT_SHADOW"] = str(recording.folder.absolute())
    own_output = os.dup(1)
    try:
        if json:
            os.dup2(2, 1)
        ending = runner.run(words, environ, recording.folder / session.STDERR_TAIL, lambda pid: None)
    except runner.CannotStart:
        recording.discard()
        raise
    finally:
        os.dup2(own_output, 1)
        os.close(own_output)
    recording.close(ending)
    return recording.folder, ending


def _check(environ: dict[str, str]) -> None:
    """Refuse what the command's processes would only tell of.

    Raises:
        SettingError: a variable or option has a value that is not among the accepted forms.
    """
    from firstfault.dispatch import policy
    from firstfault.dispatch.asked import asked_shadow

    asked_shadow(environ)
    policy.parse(environ)


def _tell(recording: Path, json: bool) -> ExitCode:
    from firstfault.errors import UnreadableInput
    from firstfault.present import shadow_text, terminal
    from firstfault.read.shadow import Comparisons, comparisons

    try:
        found = comparisons(recording)
    except UnreadableInput as error:
        tell(f"{error}: no process of the command has made a dispatched call")
        found = Comparisons()
    if json:
        sys.stdout.write(shadow_text.as_json(found, recording))
    else:
        sys.stdout.write(shadow_text.conclusion(found) + "\n")
        if found.rows:
            sys.stdout.write("\n")
            terminal.show_table((*shadow_text.COLUMNS, shadow_text.LAST), shadow_text.rows(found), sys.stdout)
        for note in shadow_text.notes(found, recording):
            sys.stdout.write(f"{note}\n")
    if found.past:
        return ExitCode.BAD
    return ExitCode.OK if found.compared and not found.problems else ExitCode.INCOMPLETE
