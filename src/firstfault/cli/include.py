"""``firstfault include``."""

from __future__ import annotations

from pathlib import Path

import firstfault


def command() -> None:
    """Print the folder of firstfault.cuh, for nvcc -I: prints and assertions for kernels whose source you have."""
    print(Path(firstfault.__file__).parent / "include")
