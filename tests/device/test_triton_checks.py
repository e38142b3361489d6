"""Prints out of a Triton kernel: one line a program that has something to tell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "checked_kernel.py"


def test_only_the_programs_with_something_to_tell_print() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_DEBUG"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    lines = Counter(re.sub(r"\s+", " ", line).strip() for line in done.stdout.splitlines())
    rows = {line: count for line, count in lines.items() if "row" in line}
    large = {line: count for line, count in lines.items() if "large" in line}
    assert len(rows) == 1, lines
    assert all("pid (2, 0, 0)" in line and line.endswith("4096") for line in rows), lines
    assert len(large) == 1, lines
    assert all("pid (1, 0, 0)" in line and line.endswith("99") for line in large), lines
