"""How often replaced ATen operators were called, one line a process and operator; the last one holds.

{"pid":4711,"op":"silu","by":"flag_gems.ops.silu.silu","calls":128}
"""

from __future__ import annotations

import msgspec

COUNTS = ".counts.jsonl"
"""Behind the name of the log whose counts they are."""


class Replaced(msgspec.Struct):
    """How often a process has called an operator that was replaced.

    Attributes:
        pid: the process.
        op: the ATen operator with its overload, as ``add.Tensor``.
        by: the function that ran instead.
        calls: calls of the program's own; not those made inside other replaced or dispatched operators.
    """

    pid: int
    op: str
    by: str
    calls: int
