"""``firstfault query PATH "SQL"``."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import READABLE
from firstfault.errors import ExitCode


class Format(str, Enum):
    """How the rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


SQL_HELP = "One query, as DuckDB understands it."
FORMAT_HELP = "How the rows are written."


def command(
    path: Annotated[Path, READABLE],
    sql: Annotated[str, typer.Argument(metavar="SQL", help=SQL_HELP)],
    output: Annotated[Format, typer.Option("--format", help=FORMAT_HELP)] = Format.TABLE,
) -> None:
    """Ask the calls of an input anything in SQL.

    calls: process, n, line, t, duration, op, target, parent, tid, site, device, stream, graph, state, exception,
    message, dump, mutated, described.

    tensors: process, n, replay, side ('in', 'out'), label, shape, dtype, device, stride, storage_offset, ptr, storage,
    nbytes, contiguous, requires_grad, version, kind, missing.

    statistics: process, n, replay, side, label, min, max, mean, nan_count, inf_count, why_none.

    writers: process, n, label, position, writer, writer_op, how, since: which call wrote what an argument holds.

    replays: process, n, graph, replay, replayed_by, t, op, dump: captured calls at the replays of their CUDA graphs.

    notes: process, t, code, message, n, count: what was not seen. problems: message: what could not be read.

    Times are in nanoseconds. The first query of an input makes an index beside it, used until the input changes.

    Exits with 0 when everything was read, 3 when some of it could not be, 2 when nothing could or the query is none.
    """
    from firstfault.cli.progress import advancing
    from firstfault.present import rows
    from firstfault.read import index
    from firstfault.read.session import open_source

    source = open_source(path)
    with advancing(path) as advance:
        place = index.current(source, advance)
    answer = index.Answer(place, sql)
    for text in rows.texts(output.value, answer.columns, answer.rows()):
        sys.stdout.write(text)
    for problem in answer.problems:
        tell(problem)
    raise typer.Exit(ExitCode.INCOMPLETE if answer.problems else ExitCode.OK)
