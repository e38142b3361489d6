"""What a shadow comparison has found, of all processes of its recording.

found = comparisons(Path("recording"))
found.rows[0].op, found.rows[0].past
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.files import read_end
from firstfault.record.shadowed import FILE, Shadowed

LARGEST = 64 * 2**20
"""Of one process's file, whose last lines hold."""
MOST_PROCESSES = 4096


@dataclass
class Comparisons:
    """The rows of every process, the worst first.

    Attributes:
        rows: one for each process, operator and backend.
        processes: the folder of each row's process.
        problems: lines that are none.
    """

    rows: list[Shadowed] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def past(self) -> list[Shadowed]:
        """The rows with calls past their tolerance."""
        return [row for row in self.rows if row.past]

    @property
    def compared(self) -> int:
        """How many calls were compared."""
        return sum(row.compared for row in self.rows)


def comparisons(recording: Path) -> Comparisons:
    """Read all comparisons of a recording.

    Raises:
        UnreadableInput: there are none.
    """
    found = Comparisons()
    files = sorted(recording.glob(f"*/{FILE}"))[:MOST_PROCESSES]
    if not files:
        raise UnreadableInput(f"there is no shadow comparison in {recording}")
    rows = [(row, file.parent.name) for file in files for row in _rows(file, found)]
    rows.sort(key=lambda pair: (-pair[0].worst, pair[0].op, pair[0].by))
    found.rows = [row for row, _ in rows]
    found.processes = [name for _, name in rows]
    return found


def _rows(file: Path, found: Comparisons) -> list[Shadowed]:
    """The last line of each operator and backend."""
    last: dict[tuple[str, str], Shadowed] = {}
    try:
        lines = read_end(file, LARGEST).splitlines()
    except UnreadableInput as error:
        found.problems.append(str(error))
        return []
    for index, line in enumerate(lines):
        try:
            row = msgspec.json.decode(line, type=Shadowed)
        except (msgspec.DecodeError, ValueError):
            if index:  # the first may be cut, where the file is longer than what is read
                found.problems.append(f"{file}: line {index + 1} is torn or none of ours")
            continue
        last[row.op, row.by] = row
    return list(last.values())
