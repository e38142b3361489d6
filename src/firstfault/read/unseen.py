"""Python processes of a command that nothing was recorded in, from ``unseen.jsonl`` of its recording.

unseen(folder)  →  ["process 4242 (python -I worker.py): -I: it reads no PYTHONPATH"]
"""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from firstfault.read.files import is_regular
from firstfault.record import layout

MOST = 20
LONGEST = 2**20


class _Unseen(msgspec.Struct):
    pid: int
    command: list[str]
    why: str


def unseen(recording: Path) -> list[str]:
    """One sentence each; of many the first ones, and how many more there are. A torn line is passed over."""
    path = recording / layout.UNSEEN
    if not is_regular(path):
        return []
    with path.open("rb") as file:
        lines = file.read(LONGEST).splitlines()
    found: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        try:
            told = msgspec.json.decode(line, type=_Unseen)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        found.setdefault((shlex.join(told.command), told.why), []).append(told.pid)
    sentences = [_sentence(command, why, pids) for (command, why), pids in found.items()]
    more = [f"{len(sentences) - MOST} more Python programs"] if len(sentences) > MOST else []
    return sentences[:MOST] + more


def _sentence(command: str, why: str, pids: list[int]) -> str:
    which = f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    return f"{which} ({command}): {why}"
