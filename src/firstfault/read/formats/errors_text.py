"""What torch, CUDA and the libraries around them print when they fail: stderr, and the logs of servers.

/pytorch/…/Indexing.cu:1515: indexSelectSmallIndex: block: [0,0,0], thread: [7,0,0] Assertion `srcIndex < …` failed.
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of …
RuntimeError: CUDA error: an illegal memory access was encountered
NVRM: Xid (PCI:0000:06:00): 31, pid=4242, name=python, … MMU Fault: … faulted @ 0x7f2b_47197000.
[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=87, OpType=ALLREDUCE, …) ran for 600004 ms
"""

from __future__ import annotations

import re
from typing import NamedTuple

from firstfault.read.formats.complaint import Complaint, Complaints, Teller, numbers

OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|MemoryError", re.IGNORECASE
)
DEVICE_ERROR = re.compile(
    r"CUDA (?:runtime |driver )?error|cudaError|illegal memory access|device-side assert|misaligned address"
    r"|Triton Error"
    r"|CUDA_ERROR_(?:ILLEGAL|LAUNCH|MISALIGNED|ASSERT|HARDWARE|INVALID_PC|INVALID_ADDRESS)\w*"
    r"|\berror:? (?:code )?7(?:00|1[0-9])\b"
    r"|illegal instruction|unspecified launch failure|CUBLAS_STATUS_(?!ALLOC_FAILED)\w+|an illegal address",
    re.IGNORECASE,
)
"""Errors of the device; most surface at a later call than the one whose kernel failed."""
SHAPES = re.compile(
    r"is invalid for input of size|must match|cannot be multiplied|size mismatch|same d(?:evice|type)|contiguous"
    r"|expected (?:scalar|data) type"
    r"|(?:shape|size|dimension|stride|layout)s? .{0,60}(?:mismatch|incompatible|not match)"
    r"|broadcast|to have \d+ channels|expected .{0,80} to have|out of bounds for storage|must have the same"
    r"|(?:same|equal|consistent|wrong|unexpected|unsupported|different|invalid) (?:\w+ )?"
    r"(?:shapes?|sizes?|dtypes?|types?|strides?|layouts?|devices?|number of (?:dim|elements|channels|rows))"
    r"|\d-?D tensor|(?:not|must be|should be) (?:\w+ )?(?:divisible|aligned)|numel\b|cannot (?:reshape|expand|view)"
    r"|view size is not compatible|(?:must|should) be .{0,30}\b(?:shape|dtype|dim|dimensions)\b",
    re.IGNORECASE,
)
"""What torch says of tensors that do not go together."""
_ASKED = re.compile(r"[Tt]ried to allocate (?P<size>\d{1,18}(?:\.\d{1,6})?) ?(?P<unit>bytes|[KMGT]iB)", re.ASCII)
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_LAUNCH = "block: ["
_ASSERT = re.compile(
    r"(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}): (?P<kernel>.+?): block: \[(?P<block>[\d, ]{1,40})\], "
    r"thread: \[(?P<thread>[\d, ]{1,40})\] (?P<text>Assertion .*)"
)
_PLACED = r"(?:(?: at)? (?P<file>[^\s:]{1,400}):(?P<line>\d{1,9})(?: -)? )"


class _Pattern(NamedTuple):
    """Where the text of an error begins in its line; it goes on to the end, or is the ``whole`` line."""

    teller: Teller
    pattern: re.Pattern[str]
    whole: bool = False


_PATTERNS = (
    _Pattern(Teller.MEMORY, re.compile(r"(?:CUDA )?out of memory|DefaultCPUAllocator: ", re.IGNORECASE)),
    _Pattern(Teller.TRITON, re.compile(r"Triton Error \[\w{1,9}\]: ")),
    _Pattern(Teller.CUBLAS, re.compile(r"CUBLAS_STATUS_\w")),
    _Pattern(Teller.CUDA, re.compile(rf"cuda error{_PLACED}", re.IGNORECASE)),
    _Pattern(Teller.CUDA, re.compile(
        r"CUDA (?:runtime |driver )?error(?:: | \()|CUDA_ERROR_\w|\berror:? (?:code )?7(?:00|1[0-9])\b"
        r"|an illegal (?:memory access|instruction) was encountered", re.IGNORECASE)),
    _Pattern(Teller.NCCL, re.compile(
        r"Watchdog caught collective operation timeout|NCCL (?:WARN|error)"
        r"|nccl(?:Internal|System|Remote|UnhandledCuda|InvalidUsage)Error")),
    _Pattern(Teller.GLOO, re.compile(r"gloo/|gloo::")),
    _Pattern(Teller.DRIVER, re.compile(r"Xid \(PCI:[\w:.]{1,30}\): \d{1,4}")),
    _Pattern(Teller.PROCESS, re.compile(
        r"died unexpectedly|exit(?:ed with)? code[:= ]{1,2}-\d{1,3}|was killed|Killed process"), whole=True),
)  # fmt: skip
_RANK = re.compile(r"\[?\b[Rr]ank[ =:]?(\d{1,6})\b")
_PID = re.compile(r"\bpid[= ](\d{1,10})")
_WORTH = re.compile(
    r"[Aa]ssert|out of mem|OutOfMem|Alloc|[Ee]rror|ERROR|Xid|NCCL|nccl|gloo|illegal|died|[Kk]illed|exit|STATUS_"
)
"""Lines that one of the patterns may match: looked for first, for nearly all lines of a server's log are not such."""

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3")
_RAISED = re.compile(
    r"(?:\[?\w{1,20}\]?:? )?(?P<text>[A-Za-z_][\w.]{0,100}(?:Error|Exception|Interrupt|Exit|NotMet)\b.*)"
)
_BARE = re.compile(r"[A-Za-z_][\w.]{0,100}(?:Error|Exception): ")
"""An exception whose traceback was not kept, as it is quoted."""


class Asked(NamedTuple):
    """The size of an allocation in bytes, and how far the message may have rounded it."""

    nbytes: int
    within: int


def asked_for(message: str) -> Asked | None:
    """The allocation that a message on memory says was tried."""
    match = _ASKED.search(message)
    if match is None:
        return None
    unit = _UNITS[match["unit"]]
    whole, _, decimals = match["size"].partition(".")
    part = int(decimals) * unit // 10 ** len(decimals) if decimals else 0
    return Asked(int(whole) * unit + part, unit // 10 ** len(decimals) if decimals else 0)


class ErrorsText:
    """Errors that stand in one line each, device-side assertions, and Python tracebacks."""

    def __init__(self, found: Complaints) -> None:
        self._found = found
        self._frame: tuple[str, int] | None = None
        self._own = False

    def take(self, number: int, line: str) -> None:
        """Look at a line."""
        if match := _FRAME.match(line):
            own = _LIBRARY.search(match["file"]) is None
            if own or not self._own:  # the last that is the program's own, or the last if none is
                self._frame, self._own = (match["file"], int(match["line"])), own
        elif _TRACEBACK in line:
            self._own, self._frame = False, None
        elif _WORTH.search(line) is None or line.startswith(("=========", "Search for `")):
            return
        elif _LAUNCH in line and (match := _ASSERT.search(line)):
            self._assertion(number, match)
        elif not self._raised(number, line) and (told := _matched(number, line)) is not None:
            self._found.add(told)

    def end(self) -> None:
        """Nothing is left open."""

    def _assertion(self, number: int, match: re.Match[str]) -> None:
        self._found.add(
            Complaint(
                Teller.ASSERT,
                match["text"],
                number,
                kernel=match["kernel"],
                file=match["file"],
                line=int(match["line"]),
                block=numbers(match["block"]),
                thread=numbers(match["thread"]),
            )
        )

    def _raised(self, number: int, line: str) -> bool:
        """Whether a line ends a traceback: its exception, told by whose error it is."""
        match = _RAISED.match(line)
        bare = match is not None and match.start("text") == 0 and _BARE.match(line) is not None
        if match is None or not (bare or self._frame is not None):
            return False
        file, at = self._frame or ("", 0)
        self._frame, self._own = None, False
        told = _matched(number, match["text"]) or Complaint(Teller.PYTHON, match["text"], number)
        told.text, told.host = match["text"], f"{file}:{at}" if file else ""
        self._found.add(told)
        return True


def _matched(number: int, line: str) -> Complaint | None:
    """The error that a line is, if it is one."""
    for teller, pattern, whole in _PATTERNS:
        match = pattern.search(line)
        if match is None:
            continue
        groups = match.groupdict()
        begins = 0 if whole else match.end() if groups else match.start()
        told = Complaint(
            teller, line[begins:], number, file=groups.get("file") or "", line=int(groups.get("line") or 0)
        )
        pid, rank, asked = _PID.search(line), _RANK.search(line), asked_for(line)
        told.pid, told.nbytes = int(pid[1]) if pid else 0, asked.nbytes if asked else 0
        told.rank = rank[1] if rank else ""
        return told
    return None
