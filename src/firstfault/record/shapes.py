"""What follows from the sizes of a tensor, for who writes them down and who reads them."""

from __future__ import annotations

from firstfault.record.schema import MOST_WORD

# What is beyond a word is no tensor's stride, and a hostile line could have it grow without end.


def usual_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step = min(step * max(size, 1), MOST_WORD)
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """As torch has it: strides of dimensions of one element do not matter, and none where there are no elements."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size != 1 and stride != step and 0 not in shape:
            return False
        step = min(step * size, MOST_WORD)
    return True
