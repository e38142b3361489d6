"""A shadow comparison as a table: one line for each operator and backend, the worst first.

operator      backend  calls  compared  past  first past  max abs   relative  cosine    ulp  error/tol
rms_norm      flagos   64     64        2     17          0.0156    0.00171   0.999998  2    1.31
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from firstfault.present.json import plain
from firstfault.read.shadow import Comparisons
from firstfault.record.shadowed import Shadowed

COLUMNS = ("operator", "backend", "calls", "compared", "past", "first past", "max abs", "relative", "cosine", "ulp")
LAST = "error/tol"


def rows(found: Comparisons) -> list[Sequence[str]]:
    """The table's rows."""
    return [_row(row) for row in found.rows]


def _row(row: Shadowed) -> Sequence[str]:
    if not row.compared:
        return (row.op, _short(row.by), str(row.calls), "0", *[""] * 7)
    return (
        row.op,
        _short(row.by),
        str(row.calls),
        str(row.compared),
        str(row.past),
        str(row.first_past or ""),
        _number(row.max_abs),
        _number(row.relative),
        f"{row.cosine:.8f}",
        _number(row.ulp),
        _number(row.worst),
    )


def _number(value: float) -> str:
    return "inf" if value > 1e300 else f"{value:.3g}"


def _short(by: str) -> str:
    """``flag_gems.ops.silu.silu`` as ``flag_gems…silu``."""
    parts = by.split(".")
    return by if len(parts) < 3 else f"{parts[0]}…{parts[-1]}"


def conclusion(found: Comparisons) -> str:
    """The first line: what was past its tolerance, or that nothing was."""
    if not found.compared:
        return "No call was compared."
    if not found.past:
        return f"All {found.compared} compared calls are within their tolerance."
    names = list(dict.fromkeys(f"{row.op} ({row.by})" for row in found.past))
    return f"Past its tolerance: {', '.join(names)}."


def notes(found: Comparisons, recording: Path) -> Iterator[str]:
    """What the table has no room for: what is wrong, where the dumps are, what was not compared."""
    for row, process in zip(found.rows, found.processes, strict=True):
        if row.why:
            yield f"{row.op} ({row.by}), call {row.worst_call}: {row.why}"
        if row.dump:
            yield f"{row.op} ({row.by}), call {row.dump_call}: dump {recording / process / row.dump}"
    skipped: dict[str, int] = {}
    for row in found.rows:
        for reason, count in row.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    yield from (f"not compared: {count} calls ({reason})" for reason, count in sorted(skipped.items()))
    yield from found.problems


def as_json(found: Comparisons, recording: Path) -> str:
    """For machines; a dump's path is as it can be opened."""
    told = []
    for row, process in zip(found.rows, found.processes, strict=True):
        fields = msgspec.structs.asdict(row) | {"process": process, "within": row.past == 0}
        fields["dump"] = str(recording / process / row.dump) if row.dump else ""
        told.append(fields)
    answer = {"version": 1, "recording": str(recording), "compared": found.compared, "operators": told}
    answer["problems"] = found.problems
    return plain(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n"
