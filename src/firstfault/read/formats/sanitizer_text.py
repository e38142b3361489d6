"""compute-sanitizer's text (memcheck, initcheck, racecheck, synccheck).

========= Invalid __global__ atomic of size 4 bytes
=========     at moe_align+0x170 in crash.py:11
=========     by thread (0,0,0) in block (17,0,0)
=========     Access to 0x7f58c68611b0 is out of bounds
=========     and is 4,156,952,497 bytes after the nearest allocation at 0x7f57cec00000 of size 512 bytes
=========         Host Frame: <module> in crash.py:15
========= ERROR SUMMARY: 1 error
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from firstfault.read.formats.complaint import MOST_DETAILS, MOST_FRAMES, Complaint, OpenComplaint, Teller, numbers
from firstfault.read.formats.source_places import is_cudas_own

_MARK = "========="
_OPENS = re.compile(
    r"(?:Invalid|Uninitialized|Unused memory|Race reported|(?:Warning|Error): Race"
    r"|(?:ERROR|Error|WARN|Warning|INFO|Info): .{0,60}Potential|Potential|Illegal instruction|Barrier error|Misaligned"
    r"|Leaked|Program hit|Malloc/Free|Free|Double free|Stack overflow|Out-of-range|Fault"
    r"|Address .{1,60} is (?:out of bounds|misaligned)|Internal (?:Sanitizer )?Error|Error: [Nn]o (?:kernel|CUDA)"
    r"|Unable to)"
)
_AT = re.compile(
    r"at (?:0x[0-9a-f]{1,16} in )?(?P<kernel>.{1,400}?)(?:\+0x[0-9a-f]{1,16})?"
    r"(?: in (?P<file>[^ ]{1,400}):(?P<line>\d{1,9}))?(?: \[\d{1,12} hazards?\])?$"
)
_BY = re.compile(r"by thread \((?P<thread>[\d,]{1,40})\) in block \((?P<block>[\d,]{1,40})\)")
_IN_BLOCK = re.compile(r"in block \((?P<block>[\d,]{1,40})\)")
_SIZE = re.compile(r"(?:of size |Leaked )([\d,]{1,20})")
_HOST = re.compile(r"Host Frame: .{1,400} in (?P<place>[^ ]{1,400}\.py:\d{1,9})$")
_DEVICE = re.compile(r"Device Frame:\s?(.{1,400})")
_ADDRESS = re.compile(r"(?:Access to|Address) (0x[0-9a-f]{1,16})(?: |$)")
_NEAR = re.compile(r"nearest allocation at (0x[0-9a-f]{1,16}) of size ([\d,]{1,20}) bytes")
_LEAKED = re.compile(r"(?:Leaked [\d,]{1,20} bytes at|in allocation) (0x[0-9a-f]{1,16})")
_ACCESS = re.compile(
    r"(?:Race reported between )?(?:Read|Write|Atomic)\w* (?:access|Thread \([\d,]{1,40}\)) (?P<at>at .*)"
)
_CLONE = re.compile(r"\[clone (?P<kernel>.{1,400}?)\] (?P<function>.{1,400})$")
_HAZARD = re.compile(r"(.{1,60}Potential \w{3} hazard detected at \S{1,40}) 0x")
_SUMMARY = re.compile(r"========= (?:ERROR|RACECHECK) SUMMARY: (\d{1,9}) (?:error|hazard)s?\b(?! (?:was|were))")


class SanitizerText(OpenComplaint):
    """Its errors; each begins at the margin and goes on in the lines that are indented below it."""

    def take(self, number: int, line: str) -> None:
        """Look at a line; those without the mark are the program's own, and may stand between."""
        if not line.startswith(_MARK):
            return
        text = line[len(_MARK) :].rstrip()
        if not text.startswith("   "):  # of one kind of report even the first line is indented, by one more
            self.end()
            if _OPENS.match(text.strip()):
                self._open = _opened(text.strip(), number)
        elif self._open is not None:
            _detail(self._open, text.strip())


def counted(lines: Iterable[str]) -> int | None:
    """How many errors the tool says it found; None where it did not come to say so."""
    found: int | None = None
    for line in lines:
        if match := _SUMMARY.match(line):
            found = (found or 0) + int(match[1])
    return found


def _opened(text: str, number: int) -> Complaint:
    """A failure by its first line, which of a race tells the place of one of the two accesses too."""
    size = _SIZE.search(text)
    told = Complaint(Teller.SANITIZER, text, number, nbytes=_number(size[1]) if size else 0)
    if (match := _ACCESS.search(text)) and (at := _AT.match(match["at"])):
        _place(told, at)
        told.text = f"{text[: match.end() - len(match['at'])]}at {told.kernel}"
    if match := _IN_BLOCK.search(text):
        told.block = numbers(match["block"])
    if match := _HAZARD.match(text):
        told.text = match[1]  # each byte is a hazard of its own
    if match := _LEAKED.search(text):
        told.near, told.near_bytes = int(match[1], 16), told.nbytes
    return told


def _detail(told: Complaint, text: str) -> None:
    """Take in one line of an error."""
    if match := _BY.match(text):
        told.thread, told.block = numbers(match["thread"]), numbers(match["block"])
    elif match := _HOST.match(text):
        told.host = match["place"]  # the last one is the program's own
        if len(told.hosts) < MOST_FRAMES:
            told.hosts.append(told.host)
    elif match := _DEVICE.match(text):
        _frame(told, match[1])
    elif text.startswith("at ") and not told.kernel and (match := _AT.match(text)):
        _place(told, match)
    elif not text.startswith(("Host Frame", "Saved host")) and len(told.details) < MOST_DETAILS:
        told.details.append(text)
        _numbers(told, text)


def _frame(told: Complaint, text: str) -> None:
    """A device function's caller; where that function is one of CUDA's own, it is the place to look at."""
    at = _AT.match(f"at {text}")
    if at is not None and at["file"] and is_cudas_own(told.file) and not is_cudas_own(at["file"]):
        inner = f" in {told.file}:{told.line}"
        if not told.frames or not told.frames[0].endswith(inner):  # of a clone it is there already
            told.frames.insert(0, told.kernel + inner)
        told.kernel, told.file, told.line = at["kernel"], at["file"], int(at["line"])
    if len(told.frames) < MOST_FRAMES:
        told.frames.append(text)


def _numbers(told: Complaint, text: str) -> None:
    """The addresses in a line, and the place of an access of a race where none is known yet."""
    if match := _ADDRESS.match(text):
        told.address = int(match[1], 16)
    if match := _NEAR.search(text):
        told.near, told.near_bytes = int(match[1], 16), _number(match[2])
    if not told.kernel and (match := _ACCESS.search(text)) and (at := _AT.match(match["at"])):
        _place(told, at)


def _place(told: Complaint, match: re.Match[str]) -> None:
    told.kernel, told.file, told.line = match["kernel"], match["file"] or "", int(match["line"] or 0)
    if inside := _CLONE.match(told.kernel):  # a device function, in the kernel that it was compiled for
        told.kernel = inside["kernel"]
        told.frames.append(f"{inside['function']} in {told.file}:{told.line}" if told.file else inside["function"])


def _number(text: str) -> int:
    return int(text.replace(",", "") or 0)
