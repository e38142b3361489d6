"""What a report holds: of each process what was in flight, what was raised, and what is suspicious in it.

Report(conclusion="sglang.custom_op.moe_align (call 37) was in flight when process vm-4242 died.", processes=[…], …)

``case.py`` makes one.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from firstfault.diagnose import chain, diagnosis
from firstfault.diagnose.device import Position
from firstfault.diagnose.finding import Finding
from firstfault.read.formats.complaint import Complaint
from firstfault.record import schema

REPORT_VERSION = 1
STDERR_LINES = 15


class Verdict(str, Enum):
    """What a process's record says of its end."""

    CULPRIT = "call that the device did not complete"
    IN_FLIGHT = "call in flight"
    EXCEPTION = "exception in a call"
    BETWEEN_CALLS = "died between calls"
    RUNNING = "running between calls"
    ENDED = "ended by itself"
    NO_CALLS = "no calls recorded"
    CANNOT_TELL = "could not tell"


class Argument(msgspec.Struct, omit_defaults=True):
    """One input or output, in short and in full."""

    name: str
    value: schema.Value


class CallReport(msgspec.Struct, omit_defaults=True):
    """One call of the report; ``inputs`` are left out for those that are only listed.

    ``described`` tells that the arguments were recorded, be they none. ``graph`` is the CUDA graph that it was captured
    into or replays, and ``replay`` at which of its replays a captured call had these values.
    """

    n: int
    op: str
    state: str
    target: str = ""
    thread: int = 0
    site: str = ""
    line: int = 0
    time: int = 0
    duration: int = 0
    parents: list[str] = []
    described: bool = False
    inputs: list[Argument] = []
    output: Argument | None = None
    mutated: list[str] = []
    exception: str = ""
    message: str = ""
    dump: str = ""
    dump_skipped: str = ""
    graph: int = 0
    replay: int = 0


class TargetReport(msgspec.Struct, omit_defaults=True):
    """What was recorded of one library or mechanism.

    Attributes:
        library: the distribution, and its version where that is known.
        boundaries: how many functions were boundaries, as far as the process came to say so.
        used: how many of them were called.
        calls: how many of their calls were recorded.
        gap: why it is not attached, or not to everything.
    """

    name: str
    library: str = ""
    boundaries: int = 0
    used: int = 0
    calls: int = 0
    gap: str = ""


class ProcessReport(msgspec.Struct, omit_defaults=True):
    """One process: the call that matters, those in flight, and the last before it.

    Attributes:
        raised: how many of its calls ended in an exception.
        title: what it has named itself.
        running: whether it is still there, as far as can be told.
        suspect: the call to look at.
        only: the call of a process that made one and ended by itself.
        last: by number; those of other threads where the suspect's has no others.
        device: where each stream stood, in words, and in ``streams`` in numbers.
        chain: of a failure on the device, from the kernel back to what made it fail.
    """

    name: str
    verdict: Verdict
    conclusion: str
    calls: int
    raised: int = 0
    running: bool = False
    pid: int = 0
    host: str = ""
    rank: str = ""
    title: str = ""
    level: int = 0
    suspect: CallReport | None = None
    only: CallReport | None = None
    in_flight: list[CallReport] = []
    last: list[CallReport] = []
    findings: list[Finding] = []
    device: list[str] = []
    streams: list[Position] = []
    targets: list[TargetReport] = []
    notes: list[str] = []
    diagnosis: diagnosis.Diagnosis | None = None
    chain: chain.Chain | None = None


class Report(msgspec.Struct, omit_defaults=True):
    """The whole answer.

    Attributes:
        version: of this structure, which only grows within a version.
        conclusion: one line that says it.
        source: the path, and what it is.
        command: what was run, and how it ended, where a session says so.
        conditions: how it was run, where that changes what is seen.
        level, targets: what was asked for, where a session says so.
        stderr: the end of what it wrote there.
        unseen: Python processes of it that nothing was recorded in, and why.
        processes: those that matter most first.
        diagnosis: what the first of them comes to; None where nothing is wrong.
        complaints: what the program and tools said of the failure.
        problems: what could not be read; the answer is incomplete where there are any.
    """

    version: int
    conclusion: str
    source: str
    kind: str
    command: list[str] = []
    level: int | None = None
    targets: list[str] = []
    ended: str = ""
    conditions: list[str] = []
    stderr: list[str] = []
    unseen: list[str] = []
    processes: list[ProcessReport] = []
    problems: list[str] = []
    diagnosis: diagnosis.Diagnosis | None = None
    complaints: list[Complaint] = []

    @property
    def complete(self) -> bool:
        """Whether everything was read."""
        return not self.problems
