"""Why a call cannot be made again.

NotRun("arg[2] is a KVCache, of which only a description was saved")
"""

from __future__ import annotations

from firstfault.errors import FirstFaultError


class NotRun(FirstFaultError):
    """A call that cannot be replayed; the text says why, and where something can be done about it, what."""
