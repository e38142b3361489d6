"""FlashInfer's ``session.jsonl``: the metadata of all calls of a session, each in the states that it went through.

    {"function_name": "rmsnorm", …, "execution_status": "inputs_saved", "dump_dir": "dumps/2026…_rmsnorm_call0001"}
    {"function_name": "rmsnorm", …, "execution_status": "completed", "dump_dir": "dumps/2026…_rmsnorm_call0001"}

It outlives dumps that were deleted or not copied; of those that lie beside it the tensors are read as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from firstfault.read.events import Problems
from firstfault.read.files import open_regular
from firstfault.read.formats.dump_folder import DumpFolder, decoded

NAME = "session.jsonl"
LONGEST_LINE = 16 * 2**20
MOST_CALLS = 100_000


class FlashInferSession(DumpFolder):
    """The calls that a session's file names, by the folders of their dumps."""

    kind = "FlashInfer session"

    def __init__(self, path: Path) -> None:
        self._session: dict[str, dict[str, Any]] = {}
        super().__init__(path)

    def _find(self) -> list[Path]:
        with open_regular(self.path) as file:
            while line := file.readline(LONGEST_LINE):
                _take(line, self._session, self.problems)
        return [self.path.parent / name for name in self._session]

    def metadata(self, folder: Path) -> dict[str, Any]:
        """What the session says of a dump."""
        return self._session[folder.name]


def _take(line: bytes, session: dict[str, dict[str, Any]], problems: Problems) -> None:
    """Take in a line: the newest state of a call stands for it, in the order in which the calls began."""
    try:
        found = decoded(line)
    except (msgspec.DecodeError, ValueError, RecursionError, MemoryError):
        problems.add(f"a line of {NAME} is no object; the rest was read")
        return
    name = Path(str(found.get("dump_dir", ""))).name if isinstance(found, dict) else ""
    if not isinstance(found, dict) or not name:
        problems.add(f"a line of {NAME} names no dump; the rest was read")
    elif name in session or len(session) < MOST_CALLS:
        session[name] = found
    else:
        problems.add(f"{NAME} has more than {MOST_CALLS} calls; those after them were left out")
