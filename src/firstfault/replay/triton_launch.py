"""A launch of a Triton kernel as a call: add_kernel[(4,)](x, …)  →  launch(x_ptr=x, …, grid=(4,))

Recorded is what the kernel itself was launched with: an autotuner around it has chosen already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from firstfault.capture.targets.triton import KERNELS
from firstfault.read.saved_call import SavedCall
from firstfault.record import schema
from firstfault.replay.errors import NotRun

KIND = "triton"
GRID = "grid"


def named(saved: SavedCall) -> Mapping[str, schema.Value]:
    """What a call was given by name; a launch too the grid, which may have been computed when it was made.

    Raises:
        NotRun: the launch did not come to computing it.
    """
    given = saved.given.named
    if saved.function.get("kind") != KIND or isinstance(given.get(GRID), schema.Sequence):
        return given
    grid = saved.metadata.get(GRID)
    if not isinstance(grid, list):
        raise NotRun("its grid was computed from the arguments, and only that was recorded")
    return {**given, GRID: schema.Sequence("tuple", len(grid), grid)}


def launched(kernel: Any) -> Callable[..., None]:
    """A kernel as a function of its arguments and the grid, without what tunes or guards it."""
    while type(kernel).__name__ not in KERNELS and hasattr(kernel, "fn"):
        kernel = kernel.fn

    def launch(grid: tuple[int, ...], **given: Any) -> None:
        kernel[tuple(grid)](**given)

    return launch
