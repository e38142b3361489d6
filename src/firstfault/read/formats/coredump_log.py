"""What the CUDA driver logs while it writes a GPU core dump.

[11:29:47.816522] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_INVALID_ADDRESS_SPACE (7)
[11:29:47.816528] coredump:   - Device: 0
[11:29:47.816971] coredump:   #0	0x7f2adf7a4780	moe_align
[11:29:47.819171] coredump: Writing ELF file to cuda_coredump
"""

from __future__ import annotations

import re

from firstfault.read.formats.complaint import MOST_DETAILS, Complaint, OpenComplaint, Teller

_MARK = "coredump: "
_DETECTED = re.compile(r"Detected an exception of type (?:CUDBG_EXCEPTION_)?(\w{1,100})")
_DETAIL = re.compile(r"\s+- (Device|SM|Warp|PC):? (.{1,100})")
_FRAME = re.compile(r"\s+#\d{1,4}\s+0x[0-9a-f]{1,16}\s+(\S.{0,400})")
_WRITTEN = re.compile(r"Writing ELF file to (.{1,400})")


class CoredumpLog(OpenComplaint):
    """The exception, the kernel on top of its stack, and the file that the core dump went to."""

    def take(self, number: int, line: str) -> None:
        """Look at a line."""
        _, mark, text = line.partition(_MARK)
        if not mark:
            return
        if match := _DETECTED.match(text):
            self.end()
            self._open = Complaint(Teller.COREDUMP, match[1].replace("_", " ").lower(), number)
        elif self._open is None:
            return
        elif match := _FRAME.match(text):
            self._open.kernel = self._open.kernel or match[1].strip()
        elif (match := _DETAIL.match(text)) and len(self._open.details) < MOST_DETAILS:
            self._open.details.append(f"{match[1]} {match[2]}")
        elif match := _WRITTEN.match(text):
            self._open.details.append(f"written to {match[1].strip()}")
            self.end()
