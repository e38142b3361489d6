"""cuda-gdb's text on a process or a GPU core dump.

[Current focus set to CUDA kernel 0, grid 4, block (17,0,0), thread (0,0,0), device 0, sm 3, warp 1, lane 0]
CUDA Exception: Warp Invalid Address Space
The exception was triggered at PC 0x7f2adf7a4770  moe_align  (crash.py:11)
#0  0x00007f2adf7a4780 in moe_align<<<(769,1,1),(128,1,1)>>> () at /data/demo/crash.py:11
"""

from __future__ import annotations

import re

from firstfault.read.formats.complaint import Complaint, Complaints, OpenComplaint, Teller, numbers

_FOCUS = re.compile(
    r"\[(?:Current focus set to|Switching focus to) CUDA kernel .{0,80}?"
    r"block \(([\d,]{1,40})\), thread \(([\d,]{1,40})\)"
)
_EXCEPTION = re.compile(r"CUDA Exception: (.{1,200})")
_PC = re.compile(
    r"The exception was triggered at PC 0x[0-9a-f]{1,16}\s+(?P<kernel>\S.{0,400}?)"
    r"(?:\s+\((?P<file>[^():]{1,400}):(?P<line>\d{1,9})\))?\s*$"
)
_FRAME = re.compile(r"#0\s+(?:0x[0-9a-f]{1,16} in )?(?P<kernel>.{1,400}?)<<<\((?P<grid>[\d,]{1,40})\),\(")
_NAMED = re.compile(r"\) at (?P<file>\S{1,400}):(?P<line>\d{1,9})\s*$")


class CudaGdbText(OpenComplaint):
    """The exception of a core dump, with the kernel and the thread that had it."""

    def __init__(self, found: Complaints) -> None:
        super().__init__(found)
        self._focus: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def take(self, number: int, line: str) -> None:
        """Look at a line."""
        if match := _FOCUS.search(line):
            self._focus = numbers(match[1]), numbers(match[2])
            if self._open is not None and not self._open.block:
                self._open.block, self._open.thread = self._focus
        elif match := _EXCEPTION.search(line):
            self.end()
            self._open = Complaint(Teller.GDB, match[1], number, block=self._focus[0], thread=self._focus[1])
        elif self._open is not None and (match := _PC.match(line)):
            self._open.kernel, self._open.file = match["kernel"], match["file"] or ""
            self._open.line = int(match["line"] or 0)
        elif self._open is not None and (match := _FRAME.match(line)):
            self._frame(self._open, match, line)

    def _frame(self, told: Complaint, match: re.Match[str], line: str) -> None:
        told.kernel, told.grid = told.kernel or match["kernel"], numbers(match["grid"])
        if (named := _NAMED.search(line)) and not told.file:
            told.file, told.line = named["file"], int(named["line"])
