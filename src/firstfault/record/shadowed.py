"""What a shadow comparison has found of one operator and one backend; the last line of each holds.

{"op":"rms_norm","by":"flagos","calls":64,"compared":64,"past":2,"first_past":17,"worst_call":40, …}

Lines are written as numbers change much (a count has doubled, a call was past its tolerance, the worst one so far was
saved), so that a process that is killed leaves them too.
"""

from __future__ import annotations

import msgspec

FILE = "shadow.jsonl"
"""In the folder of each process of a recording."""


class Shadowed(msgspec.Struct, omit_defaults=True):
    """One operator and the backend that ran it, compared with the operator's reference.

    Attributes:
        op: the operator; with ``aten::`` before it, an ATen operator that is replaced.
        by: the backend, or the function that replaces the ATen operator.
        calls: how many calls ran it.
        compared: how many of them were compared.
        tolerance: of the dtype that was computed in last; errors are relative to it.
        max_abs: the largest difference of two values.
        relative: the largest norm of the difference over that of the reference.
        cosine: the smallest cosine between the two.
        ulp: the largest difference in units of the last place of the reference, or of its root mean square.
        error: the largest difference over the reference's value and mean magnitude, which the tolerance bounds.
        past: how many calls were past their tolerance.
        first_past: the first of them, as a count of calls of this operator and backend; 0 for none.
        worst_call: the call of the largest error over its tolerance.
        worst: that error over its tolerance: above one is past it.
        dump: the folder of the dump that was kept, relative to the file; empty where there is none.
        dump_call: which call that is: the worst one, or one that was nearly as bad before it.
        why: what is wrong where it is more than a difference: other shapes, NaN on one side alone.
        skipped: how many calls were not compared, by reason.
    """

    op: str
    by: str
    calls: int = 0
    compared: int = 0
    tolerance: float = 0.0
    max_abs: float = 0.0
    relative: float = 0.0
    cosine: float = 1.0
    ulp: float = 0.0
    error: float = 0.0
    past: int = 0
    first_past: int = 0
    worst_call: int = 0
    worst: float = -1.0
    dump: str = ""
    dump_call: int = 0
    why: str = ""
    skipped: dict[str, int] = {}
