"""``firstfault diff A B``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.paths import READABLE
from firstfault.cli.processes import of_process
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.diagnose.comparison import Record
    from firstfault.read.events import Advance, Source
    from firstfault.read.evidence import Evidence

PROCESS_HELP = "Which process of A; given twice, which of A and of B. One PATH and two of these compare them."


def command(
    paths: Annotated[list[Path], READABLE],
    process: Annotated[list[str] | None, typer.Option(help=PROCESS_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Compare two runs call by call: the first call that was given the same and gave something else.

    A and B are recordings, logs or dumps of a good and a bad run, eager and with CUDA graphs, two ranks, two backends.
    What both saved at level 10 is compared element by element.
    Exits with 0 when they are the same, 1 when they differ, 3 when that cannot be told, 2 when they cannot be read.
    """
    from firstfault.cli.progress import advancing
    from firstfault.diagnose.compared import Verdict
    from firstfault.diagnose.comparison import comparison, conclude
    from firstfault.diagnose.equality import tolerance
    from firstfault.present import comparison_sections, terminal
    from firstfault.present import json as as_json
    from firstfault.read.evidence import Dumps
    from firstfault.read.session import open_source

    chosen = process or []
    left, right = _both(paths, chosen)
    sources = [open_source(left), open_source(right)]
    names = [chosen[0] if chosen else None, chosen[-1] if len(chosen) > 1 else None]
    beside = [_evidence(source) for source in sources]
    with advancing(left, right) as advance:
        records = [_record(*side, advance) for side in zip(sources, beside, names, strict=True)]
        found = comparison(records[0], records[1], Dumps(beside[0], beside[1], tolerance))
    found.problems = [f"{source.path}: {line}" for source in sources for line in source.problems.lines()]
    conclude(found)
    if json:
        sys.stdout.write(as_json.render(found))
    else:
        terminal.show_sections(found.conclusion, comparison_sections.sections(found), sys.stdout)
    status = {Verdict.SAME: ExitCode.OK, Verdict.DIFFERS: ExitCode.BAD, Verdict.CANNOT_TELL: ExitCode.INCOMPLETE}
    raise typer.Exit(status[found.verdict])


def _both(paths: list[Path], processes: list[str]) -> tuple[Path, Path]:
    """The two paths.

    Raises:
        UsageError: they are not two, or the processes do not go with them.
    """
    if len(processes) > 2:
        raise UsageError("--process can be given once for each of A and B")
    if len(paths) == 1 and len(processes) == 2:
        return paths[0], paths[0]
    if len(paths) != 2:
        raise UsageError(
            f"diff compares two paths, and {len(paths)} are given; or two processes of one, with --process twice"
        )
    return paths[0], paths[1]


def _evidence(source: Source) -> Evidence:
    """What lies beside the records of one side."""
    from firstfault.read.evidence import Evidence
    from firstfault.read.history import History

    return Evidence(source.path, source.kind, History(), source.problems)


def _record(source: Source, evidence: Evidence, process: str | None, advance: Advance) -> Record:
    """One side, as it is compared."""
    from firstfault.diagnose.comparison import Record
    from firstfault.read.formats.recording import Recording
    from firstfault.record.plain import plain_text

    session = source.session() if isinstance(source, Recording) else {}
    return Record(plain_text(evidence.name), of_process(source, process, advance), evidence.complete, session)
