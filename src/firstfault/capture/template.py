"""The text of a call's arguments or result, with gaps for the statistics of its tensors.

From level 5 on what a layout prints as is the same at each call but for the values that were read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from firstfault.capture import describe, in_place, stats
from firstfault.record import text_log

_GAP = "[gap]"
_GAPS = re.compile(r"(\n +)statistics=\[gap\]")
"""Nothing of the program's can pass for one: its line breaks are escaped."""

WHOSE = "\0"
"""Stands where the text names a thread, if it has to; what comes from the program has no such character."""


class Template:
    """What one side of a call is written as."""

    def __init__(self, render: Callable[[], str], found: list[describe.Found]) -> None:
        """Make it of the descriptions that ``render`` prints, whose tensors are ``found`` and can all be read."""
        for item in found:
            item.described.statistics = _GAP
        try:
            self._start, *parts = _GAPS.split(render())
        finally:
            for item in found:
                item.described.statistics = None
        self._paths = [item.path for item in found]
        self._contiguous = [item.described.contiguous for item in found]
        self._lines, self._after = parts[0::2], parts[1::2]
        self._read = stats.read_each if not any(item.tensor.is_cuda for item in found) else stats.read_all

    def filled(self, tensors: tuple[torch.Tensor, ...]) -> str:
        """The text for tensors that look like those it was made of, in the same order; this reads their values."""
        text = self._start
        found = self._read(tensors, self._contiguous)
        for line, statistics, after in zip(self._lines, found, self._after, strict=True):
            text += text_log.statistics(line, statistics) + after
        return text

    def watched(self, tensors: tuple[torch.Tensor, ...]) -> list[in_place.Watched]:
        """What tells later which of the tensors were written to."""
        return in_place.watch(self._paths, tensors)
