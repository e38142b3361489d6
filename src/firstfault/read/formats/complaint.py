"""What a program or a tool said of a failure: one statement, with the places and numbers in it.

Complaint(teller="compute-sanitizer", text="Invalid __global__ atomic of size 4 bytes", kernel="moe_align",
          file="crash.py", line=11, block=(17, 0, 0), thread=(0, 0, 0), …)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

MOST_COMPLAINTS = 200
LONGEST_TEXT = 500


class Teller(str, Enum):
    """Who said it."""

    ASSERT = "device-side assert"
    CUDA = "CUDA"
    TRITON = "Triton"
    CUBLAS = "cuBLAS"
    MEMORY = "allocator"
    NCCL = "NCCL"
    GLOO = "gloo"
    DRIVER = "driver (Xid)"
    PROCESS = "process"
    PYTHON = "Python"
    SANITIZER = "compute-sanitizer"
    GDB = "cuda-gdb"
    COREDUMP = "GPU core dump"


class Complaint(msgspec.Struct, omit_defaults=True):
    """One failure as it was told.

    Attributes:
        teller: who told it.
        text: what, in one line.
        at: the line of the input, from 1.
        source: the input.
        kernel: the device function that it happened in, where that is known; what follows tells where in it.
        file, line: in the source of the kernel, or of the host where there is no kernel.
        block, thread: of the launch.
        grid: the blocks of the launch.
        host: the Python line that launched it, or that an exception was raised at; of a launch the outermost, and
            ``hosts`` are all of them, the innermost first.
        pid, rank: of the process that it is of; 0 and an empty text where it does not say.
        nbytes: of the allocation or access.
        address: that was accessed, and ``near`` with ``near_bytes`` the allocation closest to it; 0 where not told.
        pc: the instruction's address on the device, and ``sass`` those around it.
        frames: the device's stack, the innermost first.
        details: more of what it says, in its own words.
        count: how often it was told, by as many threads of a kernel or ranks.
    """

    teller: Teller
    text: str
    at: int = 0
    source: str = ""
    kernel: str = ""
    file: str = ""
    line: int = 0
    block: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    host: str = ""
    hosts: list[str] = []
    pid: int = 0
    rank: str = ""
    nbytes: int = 0
    address: int = 0
    near: int = 0
    near_bytes: int = 0
    pc: int = 0
    sass: list[str] = []
    frames: list[str] = []
    details: list[str] = []
    count: int = 1

    @property
    def where(self) -> str:
        """The kernel, its line, block and thread, in words."""
        parts = [
            self.kernel,
            f"{self.file}:{self.line}" if self.file else "",
            f"block {self.block}" if self.block else "",
            f"thread {self.thread}" if self.thread else "",
        ]
        return ", ".join(filter(None, parts))


@dataclass
class Complaints:
    """Those of some inputs, in the order told: the same thing at the same place once, with a count."""

    every: list[Complaint] = field(default_factory=list)
    left_out: int = 0
    _known: dict[tuple[str, ...], Complaint] = field(default_factory=dict)

    def add(self, told: Complaint) -> None:
        """Take in one."""
        told.text = told.text.strip()[:LONGEST_TEXT]
        place = (told.kernel, told.file, str(told.line), str(told.near))
        key = (told.teller.value, told.text, *place, told.source, told.rank)
        known = self._known.get(key)
        if known is not None:
            known.count += 1
        elif len(self.every) < MOST_COMPLAINTS:
            self._known[key] = told
            self.every.append(told)
        else:
            self.left_out += 1


MOST_DETAILS = 6
MOST_FRAMES = 16
MOST_INSTRUCTIONS = 32
LONGEST_ADDRESS = 16
"""Hexadecimal digits."""


class OpenComplaint:
    """What parsers have in common that read one failure over several lines."""

    def __init__(self, found: Complaints) -> None:
        self._found = found
        self._open: Complaint | None = None

    def end(self) -> None:
        """Give out the failure that was being read."""
        if self._open is not None:
            self._found.add(self._open)
        self._open = None


class Parser(Protocol):
    """One kind of text, read line by line among the lines of others."""

    def take(self, number: int, line: str) -> None:
        """Look at a line; ``number`` counts from 1."""

    def end(self) -> None:
        """There are no more lines."""


def numbers(text: str) -> tuple[int, ...]:
    """``17,0,0`` as numbers."""
    return tuple(int(part) for part in text.split(",") if part.strip().isdecimal() and len(part) < 12)
