"""What looked at the device when it failed → the call whose kernel that was.

    Seen(told=<cuda-gdb: Warp Illegal Address in _moe_align>, call=<moe_align (call 8)>, …)

Where the driver writes a core dump it lets the device go on afterwards, so the progress markers pass the call that
failed: then the kernel that the core dump names tells which call it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firstfault.diagnose import complaints
from firstfault.diagnose.device import Position, Reach
from firstfault.diagnose.rules.ff501_index_out_of_range import breaks_contract
from firstfault.read.calls import Call
from firstfault.read.formats.complaint import Complaint, Teller
from firstfault.read.process import Process

SURE = (Teller.GDB, Teller.COREDUMP, Teller.SANITIZER)
"""Those that saw the kernel itself; an assertion says less of it than the markers do."""


class Seen(NamedTuple):
    """A kernel that failed, and the call that ran it."""

    told: Complaint
    call: Call

    @property
    def text(self) -> str:
        """One sentence or two."""
        call = f"{self.call.op} (call {self.call.n})"
        return f"The kernel of {call} failed on the device. {complaints.sentence(self.told)}."


def find(told: Sequence[Complaint], process: Process, *, only: Call | None, exited_well: bool) -> Seen | None:
    """The call of a process whose kernel was seen to fail.

    Args:
        told: what programs and tools said.
        process: the process.
        only: the one call that it can only have been, as of a dump.
        exited_well: whether the process is known to have ended well, so that what failed in it was not its end.
    """
    pid = process.header.pid if process.header is not None else 0
    seen = complaints.witness(one for one in told if not one.pid or not pid or one.pid == pid)
    if seen is None or (exited_well and seen.teller is not Teller.SANITIZER):
        return None
    call = complaints.call_of(seen.kernel, process, breaks_contract) or complaints.call_from(seen.hosts, process)
    call = call or only
    return Seen(seen, call) if call is not None else None


def overrules(seen: Seen | None, streams: Sequence[Position], process: Process) -> bool:
    """Whether a kernel that was seen to fail tells more than where the device's streams stood."""
    if seen is None:
        return False
    if not streams:
        return True
    marked = process.marked_call(streams[0].call) if streams[0].reach is Reach.IN_CALL else None
    agree = marked is not None and complaints.is_of(seen.told.kernel, marked)
    return seen.told.teller in SURE and not agree
