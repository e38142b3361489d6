"""Attaching boundaries from inside a program, without ``firstfault run``.

import firstfault
firstfault.install(targets=["nn_module", "triton"])
…
firstfault.uninstall()
"""

from __future__ import annotations

from collections.abc import Iterable

from firstfault import settings
from firstfault.capture import targets as known


def install(targets: Iterable[str] | None = None) -> None:
    """Attach targets to what the program has imported, and to what it imports from now on.

    Nothing is attached where recording is off. What a library has decorated while it was imported cannot be
    attached to afterwards: call this before importing the engine.

    Args:
        targets: names as ``firstfault targets`` lists them; ``FIRSTFAULT_TARGETS`` if left out, and ``default``
            where that is not set.

    Raises:
        SettingError: there is no target of a name.
    """
    chosen = settings.current()
    wanted = tuple(targets) if targets is not None else chosen.targets or (known.DEFAULT,)
    known.chosen(wanted)
    if chosen.level > settings.Level.OFF:
        known.attach(wanted)


def uninstall() -> None:
    """Put back every attribute that a target has replaced; boundaries that the program has made itself stay."""
    known.detach()
