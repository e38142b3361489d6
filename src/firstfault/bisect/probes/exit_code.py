"""``exit``: the command says by itself whether it is right, as for ``git bisect run``.

Exit status 0 is right, 125 cannot tell, anything else, a signal included, is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from firstfault.bisect.probes.probe import Output, Skipped, Tolerance
from firstfault.errors import ExitCode


@dataclass(frozen=True)
class ExitStatus:
    """Whether the command succeeds."""

    path: None = None

    KIND: ClassVar[str] = "exit"
    UNIT: ClassVar[str] = "failed"
    SHARE: ClassVar[float] = 0.0

    def read(self, output: Output) -> int:
        """The exit status."""
        if output.status == ExitCode.CANNOT_TELL:
            raise Skipped("it says that it cannot tell (exit status 125)")
        return output.status or 0

    def wrong(self, seen: int) -> str:
        """A status other than 0."""
        return f"it ended with signal {-seen}" if seen < 0 else f"it ended with exit status {seen}" if seen else ""

    def effect(self, seen: int, other: int) -> float:
        """1 where it fails; what it is compared with has succeeded."""
        return float(seen != 0)

    def tolerance(self, seen: int) -> Tolerance:
        """None."""
        return Tolerance(0.5, 0.5)
