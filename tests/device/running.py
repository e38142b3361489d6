"""Run a program in a process of its own, recorded, on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent.parent / "golden" / "programs"
CLI = [sys.executable, "-c", "from firstfault.cli import main; main()"]


def recorded(folder: Path, program: str, *words: str, level: int, options: tuple[str, ...] = ()) -> Any:
    """Run ``program`` under ``firstfault run`` with text log and recording; the finished process."""
    environ = os.environ | {"FIRSTFAULT_LOGDEST": str(folder / f"level{level}.log")}
    recording = str(folder / f"level{level}")
    command = [sys.executable, str(PROGRAMS / program), *words]
    return subprocess.run(
        [*CLI, "run", "--level", str(level), "--dir", recording, *options, "--", *command],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )


def report(path: Path) -> dict[str, Any]:
    """What ``firstfault report --json`` says of ``path``."""
    done = subprocess.run([*CLI, "report", str(path), "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 3), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
