"""A call held against a reference: the same in more digits, or another implementation that is known to be right.

rmsnorm: return  largest error 0.0156, mean 0.0021, relative 0.0039
"""

from __future__ import annotations

from firstfault.replay.call import Prepared
from firstfault.replay.errors import NotRun
from firstfault.replay.verdict import Replayed


def against_reference(prepared: Prepared, named: str) -> Replayed:
    """What a call comes to when it is held against its reference.

    Raises:
        NotRun: there is none.
    """
    raise NotRun(f"there is no reference for {prepared.saved.op}; name one with --reference MODULE:NAME")
