"""A dumped call, made again under compute-sanitizer: its output, and where the tensors lay.

under_sanitizer(spec, Tool.MEMCHECK, Around(), environ)  →  Run(ran=Ran(…), log="========= Invalid __global__ …")
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from firstfault.replay.launch import Around, Ran, replay
from firstfault.replay.spec import Spec
from firstfault.tools import compute_sanitizer
from firstfault.tools.compute_sanitizer import Tool

GUARD = 512
"""Bytes before each tensor; what torch and CUDA align allocations to."""
LARGEST_LOG = 2**26


class Run(NamedTuple):
    """What came of it: the replay, the tool's output, what was changed in the environment."""

    ran: Ran
    log: str
    changes: list[str]


def under_sanitizer(spec: Spec, tool: Tool, around: Around, environ: Mapping[str, str]) -> Run:
    """Make the calls of a spec under a tool, each tensor in an allocation of its own that ends where it does.

    Args:
        spec: what to replay.
        tool: which of compute-sanitizer's.
        around: the Python, and how long it may take.
        environ: ours.

    Raises:
        NotInstalled: there is no compute-sanitizer.
        CannotStart: it may not be run.
    """
    guard = GUARD if tool in (Tool.MEMCHECK, Tool.INITCHECK) else 0
    changed = compute_sanitizer.surroundings(environ)
    with tempfile.TemporaryDirectory(prefix="firstfault-sanitize-") as folder:
        before = compute_sanitizer.words(tool, Path(folder) / "log-%p.txt", (), environ)
        under = dataclasses.replace(around, before=before, environ={**around.environ, **changed.variables})
        ran = replay(msgspec.structs.replace(spec, redzone=guard), under)
        return Run(ran, "".join(map(_text, sorted(Path(folder).glob("log-*.txt")))), changed.changes)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LARGEST_LOG).decode(errors="replace") + "\n"
