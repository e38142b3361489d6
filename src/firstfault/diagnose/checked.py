"""What compute-sanitizer says of a replayed call → an answer: which argument each fault is of, and how far outside.

FAULT  moe_align (call 6): an atomic of 4 bytes in moe_align, crash.py:11, reaches 4 bytes past the end of counts
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

import msgspec

from firstfault.diagnose.accesses import Place, explained
from firstfault.errors import ExitCode
from firstfault.read.formats.complaint import Complaint, Teller

_OF_THE_API = re.compile(r"Program hit |Internal (?:Sanitizer )?Error|Unable to|Error: [Nn]o ")
_KIND = re.compile(r"(?:Invalid|Uninitialized) __(\w+)__ (?:memory )?(\w+) of size ([\d,]+) bytes")


class Verdict(str, Enum):
    """What a check says of a call."""

    FAULT = "FAULT"
    """It was seen to do what it may not."""
    CLEAN = "CLEAN"
    """It ran, and the tool reported nothing of this kind."""
    CANNOT_TELL = "CANNOT_TELL"
    """It was not run, or the tool did not come to its end."""

    @property
    def exit_code(self) -> ExitCode:
        """0 good, 1 bad, 125 cannot tell, as ``git bisect run`` wants it."""
        return {Verdict.FAULT: ExitCode.BAD, Verdict.CLEAN: ExitCode.OK}.get(self, ExitCode.CANNOT_TELL)


class Fault(msgspec.Struct, omit_defaults=True):
    """One thing that was reported.

    Attributes:
        text: what, in one clause.
        argument: of the call, as it is called there; empty where that cannot be told.
        kernel, file, line, block, thread: where on the device.
        host: the Python line that launched it.
        count: how many threads did so.
        address: that was accessed.
        details: the tool's own words.
    """

    text: str
    argument: str = ""
    kernel: str = ""
    file: str = ""
    line: int = 0
    block: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    host: str = ""
    count: int = 1
    address: int = 0
    details: list[str] = []


class Checked(msgspec.Struct, omit_defaults=True):
    """The answer of ``firstfault sanitize --json`` on a call.

    Attributes:
        tool: which of the tools.
        op, call, dump: which call.
        text: one sentence.
        faults: what was reported, in order.
        api: errors of API calls, which follow from a fault or are a library's own trials.
        counted: errors by the tool's own count.
        replayed: what the replay under the tool came to.
        changes: what of its environment was changed for it.
        notes: what else is to be known.
        version: of this form.
    """

    verdict: Verdict
    tool: str
    op: str = ""
    call: int = 0
    dump: str = ""
    text: str = ""
    faults: list[Fault] = []
    api: list[str] = []
    counted: int | None = None
    replayed: str = ""
    changes: list[str] = []
    notes: list[str] = []
    version: int = 1


def faults(complaints: Sequence[Complaint], places: Sequence[Place]) -> list[Fault]:
    """What a sanitizer reported of the device, with the argument that each is of."""
    return [_fault(told, places) for told in complaints if told.teller is Teller.SANITIZER and not is_of_the_api(told)]


def api_errors(complaints: Sequence[Complaint]) -> list[str]:
    """What it reported of calls to CUDA's API."""
    return [told.text for told in complaints if told.teller is Teller.SANITIZER and is_of_the_api(told)]


def is_of_the_api(told: Complaint) -> bool:
    """Whether a report is of a call to CUDA's API, and of nothing on the device."""
    return _OF_THE_API.match(told.text) is not None


def overwritten(name: str, before: int) -> Fault:
    """A guard before a tensor that was written to."""
    return Fault(f"a write begins {before:,} bytes before the start of {name}", name)


def judge(checked: Checked, *, ran: bool) -> Checked:
    """Give an answer its verdict and its sentence; ``ran`` tells whether the call was made."""
    if checked.faults:
        checked.verdict = Verdict.FAULT
        more = f", and {len(checked.faults) - 1} more" if len(checked.faults) > 1 else ""
        checked.text = f"{checked.faults[0].text}{more}"
    elif not ran or checked.counted is None:
        checked.verdict = Verdict.CANNOT_TELL
        checked.text = checked.replayed if not ran else f"{checked.tool} did not come to its end"
    else:
        checked.verdict = Verdict.CLEAN
        checked.text = f"{checked.tool} reported nothing of the device"
    return checked


def _fault(told: Complaint, places: Sequence[Place]) -> Fault:
    access = explained(told, places)
    kernel = f" in {told.kernel}" if told.kernel else ""
    at = f", {told.file}:{told.line}" if told.file else ""
    kind = _KIND.match(told.text)
    what = f"{_article(kind[2])} of {kind[3]} bytes" if kind else told.text
    text = f"{what}{kernel}{at}" + (f", {access.text}" if access else "")
    return Fault(
        text,
        access.label if access else "",
        told.kernel,
        told.file,
        told.line,
        told.block,
        told.thread,
        told.host,
        told.count,
        told.address,
        told.details,
    )


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
