"""What follows from the sizes of a tensor, for who writes them down and who reads them."""

from __future__ import annotations

_MOST = 2**63 - 1
"""Of a stride: what is beyond it is no tensor's, and a hostile line could have it grow without end."""


def usual_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step = min(step * max(size, 1), _MOST)
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """As torch has it: strides of dimensions of one element do not matter, and none where there are no elements."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size != 1 and stride != step and 0 not in shape:
            return False
        step = min(step * size, _MOST)
    return True
