"""``firstfault gdb DUMP`` and ``firstfault gdb -- COMMAND``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli import under_tool
from firstfault.cli.paths import given
from firstfault.cli.processes import PROCESS_HELP
from firstfault.cli.replay import CALL_HELP, DEVICE_HELP, FUNCTION_HELP, IMPORT_HELP, TIMEOUT_HELP
from firstfault.cli.run import DIR_HELP, LEVEL_HELP
from firstfault.errors import ExitCode

if TYPE_CHECKING:
    from firstfault.diagnose.report import Report
    from firstfault.replay.launch import Around
    from firstfault.replay.spec import Spec

SECONDS = 600.0


def command(
    words: Annotated[list[str], typer.Argument(metavar="DUMP | -- COMMAND...", help=under_tool.WORDS_HELP)],
    call: Annotated[int | None, typer.Option(min=1, help=CALL_HELP)] = None,
    process: Annotated[str | None, typer.Option(help=PROCESS_HELP)] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "",
    function: Annotated[str, typer.Option(metavar="MODULE:NAME", help=FUNCTION_HELP)] = "",
    imports: Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", help=IMPORT_HELP)] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help=TIMEOUT_HELP)] = SECONDS,
    level: Annotated[int | None, typer.Option(help=LEVEL_HELP)] = None,
    dir: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=DIR_HELP)] = None,  # noqa: A002
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Run one dumped call, or a command, under cuda-gdb until the device fails: kernel, block, thread, PC, SASS, line.

    cuda-gdb runs in batch, without a terminal; what it prints is joined with the call. Exits with 0 when nothing failed
    on the device, 1 when something did, 125 when it cannot tell or there is no cuda-gdb.
    """
    path = under_tool.dump_in(words)
    if path is None:
        report = _of_command(words, timeout, level, dir)
    else:
        from firstfault.read.find_dumps import find
        from firstfault.replay.launch import Around
        from firstfault.replay.spec import Spec

        dumps = find(path, call, call, process)
        spec = Spec([str(dump.folder) for dump in dumps], "", device, 1, function, imports or [])
        report = _of_dump(spec, Around(seconds=timeout))
    if json:
        from firstfault.present import json as as_json

        sys.stdout.write(as_json.render(report))
    else:
        from firstfault.present import terminal

        terminal.show(report, sys.stdout)
    raise typer.Exit(_status(report))


def _status(report: Report) -> ExitCode:
    from firstfault.read.formats.complaint import Teller

    if any(told.teller is Teller.GDB for told in report.complaints):
        return ExitCode.BAD
    return ExitCode.OK if report.complete else ExitCode.CANNOT_TELL


def _of_dump(spec: Spec, around: Around) -> Report:
    """Replay a call under cuda-gdb, and join what it says with the call that the dump holds."""
    import dataclasses

    from firstfault.diagnose.investigate import report_on
    from firstfault.read.evidence import gather
    from firstfault.read.formats.error_log import is_error_log
    from firstfault.replay.launch import replay
    from firstfault.replay.verdict import Verdict
    from firstfault.tools import cuda_gdb

    under = dataclasses.replace(around, before=cuda_gdb.on_command((), os.environ))
    ran = replay(spec, under)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "cuda-gdb.txt"
        text.write_text(ran.finished.stdout + ran.finished.stderr)
        beside = [text] if is_error_log(text) else []
        report = report_on(gather(Path(spec.calls[0]), lambda count: None, beside), last=0)
    result = ran.results[0]
    report.conditions.append(f"replayed under cuda-gdb: {result.verdict.value}: {result.text}")
    if not beside:
        report.conclusion = f"cuda-gdb saw no failure on the device. {report.conclusion}"
    if result.verdict is Verdict.NOT_RUN:
        report.problems.append(f"the call was not made again: {result.text}")
    return report


def _of_command(words: list[str], seconds: float, level: int | None, folder: Path | None) -> Report:
    """Run a command under cuda-gdb and record it; the report joins both."""
    from firstfault.cli import session
    from firstfault.diagnose.investigate import report_on
    from firstfault.read.evidence import gather
    from firstfault.tools import cuda_gdb, post_mortem
    from firstfault.tools.captured import captured
    from firstfault.tools.runner import Ending

    line = cuda_gdb.on_command(words)
    chosen = session.chosen(os.environ, level=level, folder=folder)
    recording = session.create(chosen, words)
    done = captured(line, session.environment(os.environ, recording.folder, chosen), seconds)
    recording.close(Ending(0, done.exit_status, done.signal))
    post_mortem.keep(recording.folder, "cuda-gdb", done.stdout + done.stderr)
    report = report_on(gather(recording.folder, lambda count: None), last=5)
    report.conditions.append(f"run under cuda-gdb, whose words are in {recording.folder}/tools/cuda-gdb.txt")
    return report
