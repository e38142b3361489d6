"""The record of replaced ATen operators: which the program really called, and how often.

    [DEBUG] flag_gems.ops.silu.silu: GEMS SILU aten::silu        in SGLANG_FLAGGEMS_LOG_PATH
    {"pid":4711,"op":"silu","by":"flag_gems.ops.silu.silu","calls":128}   in that path with .counts.jsonl behind it

The first is FlagGems' own form, one line for each operator, or for each call with ``SGLANG_FLAGGEMS_LOG_ONCE=0``. The
counts are written each time one has doubled and when the process ends, so that one that is killed leaves them too,
at most by half too low; the last line of a process and an operator holds.
"""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firstfault.dispatch.log import AppendedLines
from firstfault.record.replaced import COUNTS, Replaced


@dataclass(frozen=True)
class Named:
    """A replacement by its names.

    Attributes:
        op: the ATen operator with its overload, as ``add.Tensor``.
        by: the function that replaces it, as ``flag_gems.ops.add.add``.
    """

    op: str
    by: str

    def line(self) -> str:
        """What the log has of it."""
        return f"[DEBUG] {self.by}: GEMS {self.by.rpartition('.')[2].strip('_').upper()} aten::{self.op}"


class AtenLog:
    """The record of one process; without a path, it only counts.

    Args:
        path: the log; ``~/.flaggems/oplist.log`` where FlagGems' default is meant, empty for none.
        once: whether an operator is logged at its first call alone.
    """

    def __init__(self, path: str, *, once: bool = True) -> None:
        self.calls: dict[Named, int] = {}
        self._once = once
        self._lines = AppendedLines(path, "log of replaced operators")
        self._counts = AppendedLines(path + COUNTS if path else "", "counts of replaced operators")
        self._told: dict[Named, int] = {}
        if path:
            atexit.register(self.close)

    def called(self, named: Named) -> None:
        """The program has called an operator that is replaced."""
        count = self.calls[named] = self.calls.get(named, 0) + 1
        if count == 1 or not self._once:
            self._lines.append(named.line())
        if count & (count - 1) == 0:
            self._tell(named, count)

    def close(self) -> None:
        """Write the counts as they are."""
        for named, count in self.calls.items():
            if self._told.get(named) != count:
                self._tell(named, count)

    def _tell(self, named: Named, count: int) -> None:
        self._told[named] = count
        self._counts.append(msgspec.json.encode(Replaced(os.getpid(), named.op, named.by, count)).decode())


def default_path() -> str:
    """Where FlagGems logs to if nothing else is said."""
    return str(Path.home() / ".flaggems" / "oplist.log")
