"""How many files this process has open: ``opened()``  →  ``17``."""

from __future__ import annotations

import gc
import os


def opened() -> int:
    """The number of descriptors, once garbage of earlier tests has let go of its own.

    Else the collector could close one between two counts that a test compares.
    """
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
