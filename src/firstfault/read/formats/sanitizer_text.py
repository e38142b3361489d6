"""compute-sanitizer's text (memcheck, initcheck, racecheck, synccheck).

========= Invalid __global__ atomic of size 4 bytes
=========     at moe_align+0x170 in crash.py:11
=========     by thread (0,0,0) in block (17,0,0)
=========     Access to 0x7f58c68611b0 is out of bounds
=========         Host Frame: <module> in crash.py:15
"""

from __future__ import annotations

import re

from firstfault.read.formats.complaint import MOST_DETAILS, Complaint, OpenComplaint, Teller, numbers

_MARK = "========="
_OPENS = re.compile(
    r"(?:Invalid|Uninitialized|Race reported|Warning: Race|Error: Race|Barrier error|Misaligned|Leaked|Program hit"
    r"|Address .{1,60} is (?:out of bounds|misaligned)|Out-of-range)"
)
_AT = re.compile(
    r"at (?:0x[0-9a-f]{1,16} in )?(?P<kernel>.{1,400}?)(?:\+0x[0-9a-f]{1,16})?"
    r"(?: in (?P<file>[^ ]{1,400}):(?P<line>\d{1,9}))?$"
)
_BY = re.compile(r"by thread \((?P<thread>[\d,]{1,40})\) in block \((?P<block>[\d,]{1,40})\)")
_SIZE = re.compile(r"of size (\d{1,15})")
_HOST = re.compile(r"Host Frame: .{1,400} in (?P<place>[^ ]{1,400}\.py:\d{1,9})$")


class SanitizerText(OpenComplaint):
    """Its errors; each begins at the margin and goes on in the lines that are indented below it."""

    def take(self, number: int, line: str) -> None:
        """Look at a line; those without the mark are the program's own, and may stand between."""
        if not line.startswith(_MARK):
            return
        text = line[len(_MARK) :].rstrip()
        if not text.startswith("  "):
            self.end()
            if _OPENS.match(text.strip()):
                size = _SIZE.search(text)
                self._open = Complaint(Teller.SANITIZER, text.strip(), number, nbytes=int(size[1]) if size else 0)
        elif self._open is not None:
            _detail(self._open, text.strip())


def _detail(told: Complaint, text: str) -> None:
    """Take in one line of an error."""
    if match := _BY.match(text):
        told.thread, told.block = numbers(match["thread"]), numbers(match["block"])
    elif match := _HOST.match(text):
        told.host = match["place"]  # the last one is the program's own
    elif text.startswith("at ") and not told.kernel and (match := _AT.match(text)):
        told.kernel, told.file, told.line = match["kernel"], match["file"] or "", int(match["line"] or 0)
    elif not text.startswith(("Host Frame", "Saved host", "Device Frame")) and len(told.details) < MOST_DETAILS:
        told.details.append(text)
