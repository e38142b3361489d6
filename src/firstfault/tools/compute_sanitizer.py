"""compute-sanitizer around a command: its words, the environment that lets it see each tensor, its output.

compute-sanitizer --tool memcheck --padding 4096 --log-file memcheck.txt … python program.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from firstfault.tools import programs

PROGRAM = programs.Program(
    "compute-sanitizer", "cuda-sanitizer-13-0", "cuda-sanitizer-api", ("compute-sanitizer", "extras/compute-sanitizer")
)
PADDING = 4096
"""Bytes behind each allocation that belong to nobody: an access that far past its end does not meet the next one."""
MOST_ERRORS = 200


class Tool(str, Enum):
    """What it looks for."""

    MEMCHECK = "memcheck"
    """Accesses out of bounds, misaligned, to freed memory."""
    RACECHECK = "racecheck"
    """Threads of a block that race for shared memory."""
    INITCHECK = "initcheck"
    """Reads of global memory that nothing was written to."""
    SYNCCHECK = "synccheck"
    """Barriers that not all threads reach."""


FALSE_ALARMS = {
    Tool.MEMCHECK: "errors of API calls that a library makes on trial and handles are listed apart, as no faults",
    Tool.RACECHECK: "it sees races for shared memory alone; warp-synchronous code without __syncwarp is reported too",
    Tool.INITCHECK: "padding that a library reads and does not use, as cuBLAS and cuDNN do, is reported too",
    Tool.SYNCCHECK: "warp-specialised kernels with named barriers may be reported although they are right",
}
"""What each is known to report that is no fault."""

ALLOCATOR = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_NOT_SEEN = re.compile(r"expandable_segments:True|backend:cudaMallocAsync", re.IGNORECASE)


class Surroundings(NamedTuple):
    """The variables that differ for a checked command, and what they change, a sentence each."""

    variables: dict[str, str]
    changes: list[str]


def words(tool: Tool, log: Path, command: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """The command line that runs ``command`` under the tool, whose own output goes to ``log``.

    Raises:
        NotInstalled: there is no compute-sanitizer.
    """
    options = ["--tool", tool.value, "--target-processes", "all", "--print-limit", str(MOST_ERRORS)]
    if tool is Tool.MEMCHECK:
        options += ["--padding", str(PADDING)]
    return [str(programs.find(PROGRAM, environ)), *options, "--log-file", str(log), *command]


def surroundings(environ: Mapping[str, str]) -> Surroundings:
    """What gives an environment in which each tensor is an allocation of its own, which the tool knows the bounds of.

    Memory that PyTorch maps piece by piece (expandable segments) or takes from the driver's pool it would report
    wrongly, or not at all, so both are switched off.
    """
    changed = {ALLOCATOR: "1"}
    changes = [f"{ALLOCATOR}=1: PyTorch's caching allocator is off, so each tensor is an allocation of its own"]
    for name in _ALLOCATOR_SETTINGS:
        given = environ.get(name, "")
        if _NOT_SEEN.search(given):
            changed[name] = ",".join(part for part in given.split(",") if not _NOT_SEEN.search(part))
            changes.append(f"{name}={changed[name]} in place of {given}, which makes false alarms")
    return Surroundings(changed, changes)
