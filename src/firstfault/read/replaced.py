"""How often replaced ATen operators were called, from the counts beside their log.

counts(Path("gems_aten.txt"))    # [Count(op="mm", by="flag_gems.ops.mm.mm", calls=1024, processes=2), …]
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from firstfault.read.files import read_end
from firstfault.record.replaced import COUNTS, Replaced

LARGEST = 64 * 2**20


class Count(NamedTuple):
    """Calls of one operator in all processes."""

    op: str
    by: str
    calls: int
    processes: int


def counts(log: Path) -> list[Count]:
    """The counts of a log, the most frequent first.

    Raises:
        UnreadableInput: there are none beside it.
    """
    last: dict[tuple[int, str, str], int] = {}
    for line in read_end(log.with_name(log.name + COUNTS), LARGEST).splitlines():
        try:
            found = msgspec.json.decode(line, type=Replaced)
        except (msgspec.DecodeError, ValueError):
            continue  # torn, where the process was killed in it
        last[found.pid, found.op, found.by] = found.calls
    totals: dict[tuple[str, str], list[int]] = {}
    for (_, op, by), calls in last.items():
        totals.setdefault((op, by), []).append(calls)
    listed = [Count(op, by, sum(calls), len(calls)) for (op, by), calls in totals.items()]
    return sorted(listed, key=lambda count: (-count.calls, count.op))
