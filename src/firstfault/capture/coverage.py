"""What recording is attached to in this process, and what it knows that it does not see.

    attached("sglang", "sglang", "0.5.23")      a target has found its library
    counted("sglang")                           one more boundary of it
    lacks("vllm", "no CustomOp in …")           it could not attach
    missed("compiled", "modules inside …")      once more, something was not seen

Kept here until the recording takes it, for targets attach before the first call opens one.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass
class Attached:
    """How one target stands in this process.

    Attributes:
        library: the distribution that it is attached to.
        version: that distribution's, as it is installed.
        boundaries: how many functions of it are boundaries so far.
        gap: why it is not attached, or not to everything, as far as that is known.
    """

    library: str = ""
    version: str = ""
    boundaries: int = 0
    gap: str = ""


targets: dict[str, Attached] = {}
not_seen: dict[str, str] = {}
"""What is not seen, as a sentence, by its code."""
times: Counter[str] = Counter()
"""How often, by the same code."""
_lock = threading.Lock()


def attached(target: str, library: str, version: str) -> None:
    """A target has attached to its library."""
    with _lock:
        known = targets.setdefault(target, Attached())
        known.library, known.version = library, version


def counted(target: str, boundaries: int = 1) -> None:
    """A target has made that many more boundaries."""
    with _lock:
        targets.setdefault(target, Attached()).boundaries += boundaries


def lacks(target: str, reason: str) -> None:
    """A target could not attach, or may not see everything."""
    with _lock:
        known = targets.setdefault(target, Attached())
        if reason not in known.gap:
            known.gap = f"{known.gap}; {reason}" if known.gap else reason


def missed(code: str, sentence: str) -> bool:
    """Something was not seen, once more; whether it is the first time."""
    with _lock:
        not_seen[code] = sentence
        times[code] += 1
        return times[code] == 1
