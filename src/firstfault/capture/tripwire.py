"""Stops the program once a call gave NaN for inputs without any: ``FIRSTFAULT_STOP_ON_NAN=1``.

It is told of every tensor with NaN, of which statistics may come long after the call; the program is stopped at
the next boundary. Only here does recording raise on purpose.
"""

from __future__ import annotations

from collections import OrderedDict

from firstfault.capture.describe import PathKey
from firstfault.errors import NanFound
from firstfault.record.statistics_page import INPUTS

MOST_CALLS = 16384
"""Calls with NaN among their inputs that are remembered, until their results are known."""


class Tripwire:
    """What is known of NaN in this process."""

    def __init__(self) -> None:
        self._excused: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._found: NanFound | None = None

    def see(
        self, call: int, op: str, side: str, path: tuple[PathKey, ...], nan_count: int | None, replay: int = 0
    ) -> None:
        """Take note of one tensor; those of the inputs of a call come before those of its result.

        Args:
            call, op, side: whose it is.
            path: to it, among them.
            nan_count: how many of its values are NaN.
            replay: at which replay of its CUDA graph the call ran, 0 if it was captured into none.
        """
        if not nan_count:
            return
        if side == INPUTS:
            self.excuse(call, replay)
        elif self._excused.keys().isdisjoint({(call, replay), (call, 0)}) and self._found is None:
            tensor = "return" + "".join(f"[{key!r}]" for key in path)
            self._found = NanFound(op, call, tensor, nan_count, replay)

    def excuse(self, call: int, replay: int = 0) -> None:
        """Take no NaN of a call's results for its own: its inputs had some, or not all of them could be read."""
        self._excused[call, replay] = None
        if len(self._excused) > MOST_CALLS:
            self._excused.popitem(last=False)

    def found(self) -> NanFound | None:
        """The first NaN that none of a call's inputs explains, once; None where there was none."""
        found, self._found = self._found, None
        return found
