"""cuda-gdb's text on a process or a GPU core dump.

[Current focus set to CUDA kernel 0, grid 4, block (17,0,0), thread (0,0,0), device 0, sm 3, warp 1, lane 0]
CUDA Exception: Warp Invalid Address Space
The exception was triggered at PC 0x7f2adf7a4770  moe_align  (crash.py:11)
#0  0x00007f2adf7a4780 in moe_align<<<(769,1,1),(128,1,1)>>> () at /data/demo/crash.py:11
*      0      -   0    4 Active 0x0000000000000000000000000000000008 (769,1,1) (128,1,1) moe_align()
=> 0x7f2adf7a4780 <moe_align+384>:	@P0 CCTL.IVALL
"""

from __future__ import annotations

import re

from firstfault.read.formats.complaint import (
    MOST_FRAMES,
    MOST_INSTRUCTIONS,
    Complaint,
    Complaints,
    OpenComplaint,
    Teller,
    numbers,
)
from firstfault.read.formats.source_places import INLINED, Place, places, to_look_at

NO_EXCEPTION = "no exception: the kernel was running"
"""The text of a core dump that was asked for."""

_FOCUS = re.compile(
    r"\[(?:Current focus set to|Switching focus to|focus set to) CUDA kernel .{0,80}?"
    r"block \(([\d,]{1,40})\), thread \(([\d,]{1,40})\)"
)
_EXCEPTION = re.compile(r"(?:CUDA Exception: |received signal CUDA_EXCEPTION_\d{1,3}, )(.{1,200})")
_OPENED = re.compile(r"Opening GPU coredump: (.{1,400})")
_PC = re.compile(
    r"The exception was triggered at PC 0x(?P<pc>[0-9a-f]{1,16})(?:\s+(?P<kernel>\S.{0,400}?))??"
    r"(?:\s+\((?P<places>[^():]{1,400}:\d{1,9}(?: in .{1,2000})?)\))?\s*$"
)
_ANY_FRAME = re.compile(r"#(?P<at>\d{1,4})\s+(?:0x[0-9a-f]{1,16} in )?(?P<what>\S.{0,600})")
_FRAME = re.compile(r"#0\s+(?:0x(?P<pc>[0-9a-f]{1,16}) in )?(?P<kernel>.{1,400}?)<<<\((?P<grid>[\d,]{1,40})\),\(")
_NAMED = re.compile(r"\) at (?P<places>\S.{0,2000})$")
_KERNEL = re.compile(
    r"\*\s+\d{1,9}\s+\S{1,12}\s+\d{1,4}\s+\d{1,20}\s+\w{1,20}\s+0x[0-9a-f]{1,80}\s+\((?P<grid>[\d,]{1,40})\)\s+"
    r"\([\d,]{1,40}\)\s+(?P<kernel>\S.{0,400}?)\((?:[^()]|\([^()]{0,80}\)){0,400}\)\s*$"
)
_INSTRUCTION = re.compile(
    r"(?P<now>=>|\*>)?\s*(?P<pc>0x[0-9a-f]{1,16}) <(?P<where>[^>]{1,400}\+?\d{0,12})>:\s+(?P<what>\S.{0,200})"
)


class CudaGdbText(OpenComplaint):
    """The exception of a core dump, with the kernel and the thread that had it, and the code around it."""

    def __init__(self, found: Complaints) -> None:
        super().__init__(found)
        self._focus: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._last = -1
        self._inlined = ""

    def take(self, number: int, line: str) -> None:
        """Look at a line."""
        if match := _FOCUS.search(line):
            self._focus = numbers(match[1]), numbers(match[2])
            if self._open is not None and not self._open.block:
                self._open.block, self._open.thread = self._focus
        elif match := _EXCEPTION.search(line):
            self._begin(match[1], number)
        elif _OPENED.match(line):
            self._begin(NO_EXCEPTION, number)
        elif self._open is not None:
            self._more(self._open, line)

    def end(self) -> None:
        """Give out the failure that was being read; a core dump that tells of no kernel is none."""
        if self._open is not None and self._open.text == NO_EXCEPTION and not self._open.kernel:
            self._open = None
        if self._open is not None and self._inlined:  # the stack is that of the thread, which has gone on from there
            self._open.frames = [self._inlined, *self._open.frames][:MOST_FRAMES]
        self._inlined = ""
        super().end()

    def _begin(self, text: str, number: int) -> None:
        """An exception follows the opening of the dump that it is of; of a process it is told twice."""
        text = text.rstrip(". ")
        if self._open is not None and not self._open.frames and self._open.text in (NO_EXCEPTION, text):
            self._open.text = text
        else:
            self.end()
            self._open = Complaint(Teller.GDB, text, number)
        self._open.block, self._open.thread = self._focus
        self._last = -1

    def _more(self, told: Complaint, line: str) -> None:
        """A line that tells more of the open one."""
        if match := _PC.match(line):
            told.kernel, told.pc = match["kernel"] or told.kernel, int(match["pc"], 16)
            told.file, told.line = to_look_at(places(match["places"] or ""))
            self._inlined = match["places"] if INLINED in (match["places"] or "") else ""
        elif match := _ANY_FRAME.match(line):
            self._frame(told, match, line)
        elif match := _KERNEL.match(line):
            told.kernel, told.grid = told.kernel or match["kernel"], told.grid or numbers(match["grid"])
        elif (match := _INSTRUCTION.match(line)) and len(told.sass) < MOST_INSTRUCTIONS:
            _add_instruction(told, match)

    def _frame(self, told: Complaint, match: re.Match[str], line: str) -> None:
        """A frame of the stack; what comes again from the outermost on is another look at the same."""
        at = int(match["at"])
        new = at == self._last + 1 and at == len(told.frames) < MOST_FRAMES
        if new:
            told.frames.append(match["what"].strip())
            self._last = at
        if top := _FRAME.match(line):
            told.kernel, told.grid = told.kernel or top["kernel"], numbers(top["grid"])
        # The exception's own place is the exact one, unless it is in CUDA's headers.
        if (new or top) and (named := _NAMED.search(line)):
            told.file, told.line = to_look_at([Place(told.file, told.line), *places(named["places"])])


def _add_instruction(told: Complaint, match: re.Match[str]) -> None:
    """One instruction, in the order of their addresses; the one that failed is marked."""
    pc = int(match["pc"], 16)
    failed = pc == told.pc if told.pc else match["now"] is not None
    text = f"{'=>' if failed else '  '} {match['pc']} <{match['where']}>: {match['what'].strip()}"
    known = {line[3:].split(" ", 1)[0] for line in told.sass}
    if match["pc"] not in known:
        told.sass.append(text)
        told.sass.sort(key=lambda line: int(line[3:].split(" ", 1)[0], 16))
