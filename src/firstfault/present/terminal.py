"""A conclusion and its sections for a terminal or a pipe: colour and width where there are any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from firstfault.diagnose.report import Report
from firstfault.present.sections import Label, Line, Section, sections
from firstfault.record.text_log import one_line

PIPE_WIDTH = 140
LABEL_WIDTH = 9
_TRAILING = re.compile(" +$", re.MULTILINE)


def show(report: Report, file: IO[str]) -> None:
    """Print ``report`` to ``file``."""
    show_sections(report.conclusion, sections(report), file)


def show_sections(conclusion: str, told: Iterable[Section], file: IO[str]) -> None:
    """Print a conclusion and what it rests on to ``file``; what came from the program cannot steer the terminal.

    Raises:
        OSError: it cannot be written, or nobody reads it; rich would end the process then.
    """
    console = Console(file=file, highlight=False, soft_wrap=False, width=None if file.isatty() else PIPE_WIDTH)
    with console.capture() as shown:
        console.print(_text(conclusion, "bold"), soft_wrap=True)
        for section in told:
            console.print()
            _section(console, section)
    file.write(_TRAILING.sub("", shown.get()))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], file: IO[str]) -> None:
    """Print a table to ``file``; what is in it cannot steer the terminal.

    Raises:
        OSError: it cannot be written.
    """
    console = Console(file=file, highlight=False, soft_wrap=False, width=None if file.isatty() else PIPE_WIDTH)
    with console.capture() as shown:
        console.print(_table(columns, rows))
    file.write(_TRAILING.sub("", shown.get()))


def plain(line: Line) -> str:
    """A line without its marks: labels stand in a column of their own."""
    return "".join(f"{span:<{LABEL_WIDTH}}" if isinstance(span, Label) else span for span in line)


def _section(console: Console, section: Section) -> None:
    console.print(_text(section.title, "bold cyan"), soft_wrap=True)
    for line in section.lines:
        console.print(_text("  " + plain(line)), soft_wrap=True)
    if section.rows:
        console.print(_table(("", *section.columns), [("", *row) for row in section.rows]))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(_text(column, "dim"), overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(text: str, style: str = "") -> Text:
    return Text(one_line(text), style=style)
