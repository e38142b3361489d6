"""What ``firstfault shadow`` asks of the processes that it starts, through their environment.

FIRSTFAULT_SHADOW=recording FIRSTFAULT_SHADOW_OPS=rms_norm,aten::* FIRSTFAULT_SHADOW_TOLERANCE=1e-3 python program.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firstfault.errors import SettingError


@dataclass(frozen=True)
class Compared:
    """What is asked of shadow comparisons.

    Attributes:
        recording: where they go; None for none.
        ops: shell-style patterns of what is compared; all where there are none.
        tolerance: of the error, in place of each dtype's own.
    """

    recording: Path | None = None
    ops: tuple[str, ...] = ()
    tolerance: float | None = None


def asked_shadow(environ: Mapping[str, str]) -> Compared:
    """Read what is asked of shadow comparisons.

    Raises:
        SettingError: the tolerance is no positive number.
    """
    folder = environ.get("FIRSTFAULT_SHADOW", "")
    ops = tuple(word.strip() for word in environ.get("FIRSTFAULT_SHADOW_OPS", "").split(",") if word.strip())
    return Compared(Path(folder) if folder else None, ops, _tolerance(environ.get("FIRSTFAULT_SHADOW_TOLERANCE", "")))


def _tolerance(value: str) -> float | None:
    if not value:
        return None
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise SettingError(f"FIRSTFAULT_SHADOW_TOLERANCE={value!r} is no tolerance; accepted: a number above 0")
    return found
