"""Reading a whole input with Python's collector of reference cycles at rest.

with uncollected(): …
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for reference cycles: records make none, and looking through all that are kept doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()  # what was kept until here stays to the end, and is not worth a search either
            gc.enable()
