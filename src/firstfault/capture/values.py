"""How a recorder reads the values of tensors: at once, or without waiting for the device; and what it does on NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from firstfault.capture import deferred_stats, device_stats, guard, progress, stats, tripwire
from firstfault.capture.describe import Found
from firstfault.errors import tell
from firstfault.record.statistics_page import INPUTS
from firstfault.settings import Settings


class Values:
    """Reads statistics as the settings ask for, from level 5 on."""

    def __init__(self, chosen: Settings, folder: Path | None, note: Callable[[str, str], None]) -> None:
        """``folder`` is that of the process in the recording, if there is one; ``note`` writes a note into it."""
        self._folder = folder
        self._note = note
        self._deferred: deferred_stats.DeferredStatistics | None = None
        self._defers = chosen.defers_statistics and folder is not None
        if chosen.asynchronous and not self._defers:
            tell("FIRSTFAULT_STATS=async needs a recording at level 5; statistics are read at once")
        self._tripwire = tripwire.Tripwire() if chosen.stop_on_nan else None

    def read(self, found: list[Found], n: int, op: str, side: str) -> None:
        """Read the statistics of one side of a call, or have the device read them later."""
        deferred = self._deferred or self._open_deferred()
        if deferred is None:
            stats.fill_all(found)
        else:
            deferred.start(deferred.ask(found, deferred_stats.Side(n, op, side)))
        if self._tripwire is not None:
            if side == INPUTS and any(map(_is_unread, found)):
                self.excuse(n)
            for item in found:
                self._tripwire.see(n, op, side, item.path, item.described.nan_count)

    def excuse(self, n: int) -> None:
        """Take no NaN of a call's results for its own: not all of its inputs are known."""
        if self._tripwire is not None:
            self._tripwire.excuse(n)

    @contextmanager
    def left_to_device(self, found: list[Found], n: int, op: str) -> Iterator[bool]:
        """Leave the arguments of a call to the device, if all can be; whether that is so.

        What runs inside writes the call down before the device is told to read.
        """
        deferred = self._deferred or self._open_deferred()
        if deferred is None or not all(item.tensor.is_cuda for item in found):
            yield False
            return
        launches = deferred.ask(found, deferred_stats.Side(n, op, INPUTS))
        if any(map(_is_unread, found)):
            self.excuse(n)
        try:
            yield True
        finally:
            deferred.start(launches)

    def stop_on_nan(self) -> None:
        """Raise what the tripwire has found.

        Raises:
            NanFound: a call gave NaN for inputs without.
        """
        if self._tripwire is None:
            return
        try:
            if self._deferred is not None:
                self._deferred.look()
        except Exception as error:
            guard.internal_error("looking for NaN", error)
        if (found := self._tripwire.found()) is not None:
            raise found

    def close(self) -> None:
        """Take in what the device has read, and tell of NaN that no boundary came after."""
        if self._deferred is not None:
            self._deferred.close()
            self._deferred = None
        if self._tripwire is not None and (found := self._tripwire.found()) is not None:
            tell(f"{found}, after the last boundary")

    def _open_deferred(self) -> deferred_stats.DeferredStatistics | None:
        """The statistics page, once the program uses CUDA; one note where it cannot be had."""
        if not self._defers or not torch.cuda.is_initialized() or guard.graph_capture_active():
            return None
        self._defers = False
        reader = device_stats.reader()
        try:
            if reader is None:
                raise device_stats.Unavailable("the device cannot read them by itself")
            assert self._folder is not None
            self._deferred = deferred_stats.DeferredStatistics(self._folder, reader, self._tripwire)
        except (device_stats.Unavailable, progress.MarkersUnavailable, OSError) as reason:
            self._note("statistics", f"statistics are read at once: {reason}")
        return self._deferred


def _is_unread(item: Found) -> bool:
    """Whether nothing is known of a tensor's values, and nothing will be."""
    return item.described.statistics not in (None, stats.EMPTY, deferred_stats.PENDING)
