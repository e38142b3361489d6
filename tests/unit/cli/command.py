"""The command line as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "firstfault", *map(str, words)]


def run(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end and give back status and output."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FIRSTFAULT_", "SGLANG_"))}
    wanted: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "timeout": 120,
        "check": False,
        "env": environ,
    } | options
    done: subprocess.CompletedProcess[str] = subprocess.run(command(*words), **wanted)
    return done
