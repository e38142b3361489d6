"""Look into a Triton kernel: prints and assertions that come once per program, and name what is wrong.

    from firstfault.triton_checks import check_index, print_if

    e = check_index(tl.load(ids + r, mask=inside), experts, inside, "expert id")
    print_if(tl.max(x, 0) > 1e4, tl.max(x, 0), "activation too large ")

``tl.device_print`` prints each element of a tensor, from each thread that holds it; these print one number, of the
programs that have something to tell. They are for debugging: take them out again, or give ``ON=False``.

Triton's own ``tl.device_assert`` is left out unless ``TRITON_DEBUG=1``; ``check_index`` prints in any case.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def print_if(condition, value, label: tl.constexpr, ON: tl.constexpr = True):  # noqa: N803
    """Print one number of each program in which a condition holds; both are scalars."""
    if ON:  # noqa: SIM102 – of these two only the first is known when it is compiled
        if condition:
            tl.device_print(label, value)


@triton.jit
def check_index(index, bound, mask, label: tl.constexpr, ON: tl.constexpr = True):  # noqa: N803
    """Give back indices as they are; of each program that has some outside of 0 … bound, print the first that is.

    Args:
        index: integers, a tensor of any shape.
        bound: what they must stay below.
        mask: which of them count, of the same shape.
        label: what they are; it begins the line, with the program and the block's coordinates before it.
        ON: whether to look at all.
    """
    if ON:
        outside = ((index < 0) | (index >= bound)) & mask
        count = tl.sum(outside.to(tl.int32))
        lowest = tl.min(tl.where(outside, index, 0))
        highest = tl.max(tl.where(outside, index, 0))
        if count > 0:
            tl.device_print(label, tl.where(lowest < 0, lowest, highest))
        tl.device_assert(~outside, label)
    return index
