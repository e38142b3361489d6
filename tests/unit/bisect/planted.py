"""A program of a few numbers whose operators are switched by the plugin's variables, with planted faults.

Run as a script it does the same in a process of its own: ``planted.py OUT FAULTS`` with faults as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FUSED = tuple(f"fused_{at}" for at in range(10))
ATEN = tuple(f"aten_{at}" for at in range(24))


def on(environ: Mapping[str, str]) -> set[str]:
    """The operators that the variables switch on."""
    if environ.get("SGLANG_PLUGINS") == "__none__":
        return set()
    found: set[str] = {"plugin"}
    if environ.get("SGLANG_FL_OOT_ENABLED", "1") != "0":
        usual = environ.get("SGLANG_FL_PREFER", "flagos")
        chosen = dict(item.split("=") for item in environ.get("SGLANG_FL_PER_OP", "").split(";") if item)
        found |= {name for name in FUSED if chosen.get(name, usual) == "flagos"}
        found |= {"reference"} if usual == "reference" else set()
    if environ.get("USE_FLAGGEMS", "1") != "0":
        listed = environ.get("SGLANG_FL_FLAGOS_WHITELIST", "")
        found |= set(listed.split(",")) if listed else set(ATEN)
    return found


def values(
    environ: Mapping[str, str], faults: list[dict[str, Any]], chance: random.Random, rounding: float = 1e-12
) -> list[float]:
    """Eight numbers; each fault whose operators are all on changes them by its size, and every operator rounds."""
    switched = on(environ)
    found = [1.0 + at for at in range(8)]
    for fault in faults:
        noise = fault.get("noise", 0.0)
        happens = set(fault.get("with", ())) <= switched and chance.random() < fault.get("rate", 1.0)
        if happens and not (set(fault.get("unless", ())) & switched):
            found = [value * (1 + fault.get("size", 0.0)) + noise * chance.gauss(0, 1) for value in found]
    return [value * (1 + rounding * len(switched)) for value in found]


def write_logs(environ: Mapping[str, str]) -> None:
    switched = on(environ)
    if path := environ.get("SGLANG_FL_DISPATCH_LOG"):
        Path(path).write_text(
            "".join(f"[OOT-DISPATCH] {name} → flagos(flagos)\n" for name in FUSED if name in switched)
        )
    if path := environ.get("SGLANG_FLAGGEMS_LOG_PATH"):
        lines = (f"[DEBUG] flag_gems.ops.{name}.{name}: GEMS\n" for name in ATEN if name in switched)
        Path(path).write_text("".join(lines))


@dataclass
class Planted:
    """The program in this process, as a bisection runs one.

    Attributes:
        faults: what is planted.
        chance: decides whether a fault happens.
        runs: how many there have been.
        dies: after how many runs it raises, as Ctrl-C does.
    """

    faults: list[dict[str, Any]]
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    runs: int = 0
    dies: int = 10**9
    rounding: float = 1e-12
    logs: bool = True
    """Whether it is one of those that tell what they have switched."""

    @property
    def identity(self) -> str:
        return repr(self.faults)

    def run(self, variables: Mapping[str, str | None], folder: Path, started: Callable[[int, int], None]) -> Any:
        if self.runs >= self.dies:
            raise KeyboardInterrupt
        self.runs += 1
        environ = {name: value for name, value in variables.items() if value is not None}
        if self.logs:
            write_logs(environ)
        broken = [fault for fault in self.faults if fault.get("crash") and set(fault["with"]) <= on(environ)]
        if not broken:
            found = values(environ, self.faults, self.chance, self.rounding)
            (folder / "output.json").write_text(json.dumps(found))
        return self.output(folder, 1 if broken else 0)

    def output(self, folder: Path, status: int | None) -> Any:
        from firstfault.bisect.programs import files

        return files.output("{dir}/out.json", folder, status)


if __name__ == "__main__":
    write_logs(os.environ)
    told = json.loads(sys.argv[2])
    Path(sys.argv[1]).write_text(json.dumps(values(os.environ, told, random.SystemRandom())))
