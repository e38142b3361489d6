"""``firstfault run -- COMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.settings import LEVEL_FORMS

if TYPE_CHECKING:
    from firstfault.read.summary import Summary

MOST_GAPS = 5
LONGEST_GAP = 200
"""Of what was not seen, in the last line of a command that went well."""

CONTEXT = {"allow_interspersed_args": False}
LEVEL_HELP = f"How much is recorded: {LEVEL_FORMS}; FIRSTFAULT_LOGLEVEL if that is set, else 3."
DIR_HELP = "The folder for the recording, new or empty; FIRSTFAULT_DIR if that is set, else firstfault-DATE-TIME-PID."
NAN_HELP = "Stop the command once a call gives NaN for inputs without; needs --level 5 or 10."
CORE_HELP = "Have the driver write a light GPU core dump when a kernel fails, and open it with cuda-gdb."
BLOCKING_HELP = (
    "Set CUDA_LAUNCH_BLOCKING=1: a separate experiment, which changes timing and may hide what depends on it."
)
TARGETS_HELP = (
    "What is recorded, names with commas between; FIRSTFAULT_TARGETS if that is set, else default. "
    "See firstfault targets."
)


def command(
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    level: Annotated[int | None, typer.Option(help=LEVEL_HELP)] = None,
    dir: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=DIR_HELP)] = None,  # noqa: A002
    targets: Annotated[str | None, typer.Option(metavar="<names>", help=TARGETS_HELP)] = None,
    stop_on_nan: Annotated[bool, typer.Option("--stop-on-nan", help=NAN_HELP)] = False,
    coredump: Annotated[bool, typer.Option("--coredump", help=CORE_HELP)] = False,
    blocking: Annotated[bool, typer.Option("--blocking", help=BLOCKING_HELP)] = False,
) -> None:
    """Run a command with recording on; when it dies, print the report.

    Ends as the command does: with its exit status, or by the signal that killed it. Of one that goes well, a last
    line on stderr says what was recorded, and what was not.
    """
    from firstfault.cli import session
    from firstfault.tools import children, core_dumps, runner

    chosen = session.chosen(os.environ, level=level, folder=dir, targets=targets, stop_on_nan=stop_on_nan)
    recording = session.create(chosen, words, blocking=blocking)
    environ = session.environment(os.environ, recording.folder, chosen)
    environ |= {"CUDA_LAUNCH_BLOCKING": "1"} if blocking else {}
    environ |= core_dumps.prepared(recording.folder, os.environ) if coredump else {}
    try:
        looking = children.Children(recording.folder, session.HOOK, session.redact)
        look = looking.look if chosen.level else lambda pid: None
        ending = runner.run(words, environ, recording.folder / session.STDERR_TAIL, look)
    except runner.CannotStart:
        recording.discard()
        raise
    recording.close(ending)
    if coredump:
        _open_core_dumps(recording.folder)
    if sys.stderr is not None and chosen.level:
        _report(recording.folder) if ending.abnormal else _sum_up(recording.folder)
    raise typer.Exit(runner.end_like(ending))


def _open_core_dumps(recording: Path) -> None:
    """Have cuda-gdb look into what the driver has left, for the report."""
    from firstfault.tools import post_mortem

    try:
        _, why_not = post_mortem.open_all(recording, os.environ)
        if why_not:
            tell(why_not)
    except (Exception, KeyboardInterrupt) as error:
        tell(f"the GPU core dumps could not be opened ({str(error) or type(error).__name__})")


def _sum_up(recording: Path) -> None:
    """One line on what was recorded, and what is known not to have been."""
    from firstfault.read.summary import summary

    try:
        found = summary(recording)
        if not found.processes:
            tell(f"recorded nothing in {recording}: no Python process of the command has used torch{_not_seen(found)}")
            return
        calls = f"{found.calls:,} {'call' if found.calls == 1 else 'calls'}"
        processes = f"{found.processes} {'process' if found.processes == 1 else 'processes'}"
        cut_off = f", {found.cut_off} of which did not end by itself" if found.cut_off else ""
        tell(f"recorded {calls} of {processes}{cut_off} in {recording}{_not_seen(found)}")
    except (Exception, KeyboardInterrupt) as error:
        tell(f"recorded in {recording}, which could not be read ({str(error) or type(error).__name__})")


def _not_seen(found: Summary) -> str:
    from firstfault.present.values import shortened

    gaps = [shortened(gap, LONGEST_GAP) for gap in found.gaps[:MOST_GAPS]]
    left = len(found.gaps) - len(gaps)
    gaps += [f"{left} more, which firstfault report shows"] if left else []
    return f"; not seen: {'; '.join(gaps)}" if gaps else ""


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
