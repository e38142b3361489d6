"""``firstfault coredump FILE``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given, readable
from firstfault.errors import ExitCode, UnreadableInput, UsageError

if TYPE_CHECKING:
    from firstfault.diagnose.report import Report
    from firstfault.read.evidence import Evidence

FILE_HELP = "A GPU core dump, as CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 leaves it."
RECORDING_HELP = "What was recorded of the process; found by itself where the file lies in a recording."
TRIGGER_HELP = "Ask a process for one, that hangs or runs; it was started by firstfault run --coredump."
YES_HELP = "Do not ask before the process is aborted."
SECONDS_HELP = "How long to wait for the core dump."


def command(
    file: Annotated[Path | None, typer.Argument(parser=given, metavar="FILE", help=FILE_HELP)] = None,
    recording: Annotated[Path | None, typer.Argument(parser=readable, metavar="RECORDING", help=RECORDING_HELP)] = None,
    trigger: Annotated[int | None, typer.Option(min=1, metavar="PID", help=TRIGGER_HELP)] = None,
    yes: Annotated[bool, typer.Option("--yes", help=YES_HELP)] = False,
    seconds: Annotated[float, typer.Option(min=1, help=SECONDS_HELP)] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Open a GPU core dump with cuda-gdb: kernel, exception, instruction, source line, and the call that ran it.

    With a recording of the process, the chain goes on from the kernel to the call, its argument, the bad value and the
    call that made it. Exits with 0 when everything was read, 3 when some was not, 125 where there is no cuda-gdb.
    """
    if (file is None) == (trigger is None):
        raise UsageError("give a core dump, or --trigger PID to ask a process for one")
    core = file if file is not None else _asked_for(trigger or 0, seconds, yes=yes)
    report = _report(core, recording or _recording_of(core))
    if json:
        from firstfault.present import json as as_json

        sys.stdout.write(as_json.render(report))
    else:
        from firstfault.present import terminal

        terminal.show(report, sys.stdout)
    raise typer.Exit(ExitCode.OK if report.complete else ExitCode.INCOMPLETE)


def _asked_for(pid: int, seconds: float, *, yes: bool) -> Path:
    """The core dump that a process was asked for, after a word on what that does to it."""
    from firstfault.tools import core_dumps

    environ = core_dumps.environment_of(pid)
    tell(f"process {pid} will not live on: {core_dumps.ABORTS}")
    if not yes and not (sys.stdin.isatty() and typer.confirm("Ask it for a core dump?", err=True)):
        raise UsageError("nothing was done; give --yes to do it")
    return core_dumps.trigger(pid, environ, os.uname().nodename, seconds)


def _recording_of(core: Path) -> Path | None:
    """The recording that a core dump lies in, if it lies in one."""
    from firstfault.record import layout

    folder = core.absolute().parent
    inside = folder.name == layout.CORE_DUMPS and (folder.parent / layout.SESSION).exists()
    return folder.parent if inside else None


def _report(core: Path, recording: Path | None) -> Report:
    """What cuda-gdb says of a core dump, joined with what was recorded.

    Raises:
        UsageError: it is no core dump, or cuda-gdb cannot read it.
    """
    from firstfault.diagnose.investigate import report_on
    from firstfault.tools import core_dumps, post_mortem

    if not core.is_file():
        raise UsageError(f"no such file: {core}")
    if not core_dumps.is_core_dump(core):
        raise UsageError(f"{core} is no GPU core dump; firstfault report reads texts and recordings")
    text = post_mortem.opened(core, os.environ)
    if recording is not None and recording == _recording_of(core):
        post_mortem.keep(recording, f"cuda-gdb-{core_dumps.pid_of(core)}", text)
        return report_on(_gathered(recording, [], text), last=5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{core.name}.txt"
        path.write_text(text)
        first, beside = (recording, [path]) if recording is not None else (path, [])
        return report_on(_gathered(first, beside, text), last=5)


def _gathered(path: Path, beside: list[Path], text: str) -> Evidence:
    from firstfault.read.evidence import gather

    try:
        return gather(path, lambda count: None, beside)
    except UnreadableInput as error:
        last = text.strip().splitlines()[-1:] or ["nothing"]
        raise UsageError(f"cuda-gdb does not say what failed; its last words: {last[0]}") from error
