"""The rows that a query gave, as a table for people, as CSV, or as JSON.

op               calls
RMSNorm.forward  512
rope             256
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from firstfault.present.json import plain
from firstfault.record.text_log import one_line

VERSION = 1
SIZED = 1000
"""Rows whose values the widths of a table's columns are made for."""
WIDEST = 60


def texts(form: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The answer, piece by piece; ``form`` is ``table``, ``csv`` or ``json``."""
    return {"table": _table, "csv": _csv, "json": _json}[form](columns, rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    shown = ([_shown(value) for value in row] for row in rows)
    first = [[one_line(name) for name in columns], *islice(shown, SIZED)]
    widths = [min(max(map(len, cells)), WIDEST) for cells in zip(*first, strict=True)]
    for cells in chain(first, shown):
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() + "\n"


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([columns], ([_shown(value) for value in row] for row in rows)):
        writer.writerow(row)
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """One object; rows are arrays, since a query may name two columns alike."""
    yield f'{{"version": {VERSION}, "columns": {_encoded(columns)}, "rows": ['
    joint = "\n"
    for row in rows:
        yield joint + _encoded([_finite(value) for value in row])
        joint = ",\n"
    yield "\n]}\n"


def _encoded(value: Any) -> str:
    return plain(msgspec.json.encode(value, enc_hook=str).decode())


def _shown(value: Any) -> str:
    """A value on one line; nothing for NULL."""
    return "" if value is None else one_line(str(value))


def _finite(value: Any) -> Any:
    """A value with the names of numbers that JSON has none for, as in a record."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return value
