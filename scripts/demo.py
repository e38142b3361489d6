"""The main job on a real crash: run a program that faults, and print the report on it.

make demo
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SEGFAULT = -11


def main() -> int:
    """Run ``examples/crash.py`` under ``firstfault run``; 0 when it crashed and was reported on."""
    folder = Path(tempfile.mkdtemp(prefix="firstfault-demo-"))
    command = ["firstfault", "run", "--level", "5", "--dir", "recording", "--", "python", "crash.py"]
    print("$ " + " ".join(command), flush=True)
    shutil.copy(ROOT / "examples" / "crash.py", folder)
    programs = {"firstfault": str(Path(sys.executable).parent / "firstfault"), "python": sys.executable}
    done = subprocess.run([programs.get(word, word) for word in command], cwd=folder, check=False)
    print(f"\nThe recording is in {folder / 'recording'}", flush=True)
    return 0 if done.returncode == SEGFAULT else 1


if __name__ == "__main__":
    sys.exit(main())
