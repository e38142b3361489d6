"""The kernel that reads the statistics of up to 64 tensors of any dtype in one launch, each value once.

Imported only once the program uses CUDA: this is the one module that needs triton.

Each row of the grid takes one tensor, each program of a row one part of it. A tensor is read in two loops: its
aligned 16-byte blocks where it is dense, and value by value what is left of it (the ends of a dense tensor, all
of one with strides). Values are taken apart from their bits, because a GPU has arithmetic for fewer types than
torch. Bounds are compared as 64-bit keys that order like the values; a sum is made in a fixed order, in float64
but for the few values of 16 bits and less that one thread adds up at once: so each run gives the same bits.

The results of the programs of a tensor are put together by the one that ends last.

A request can also be for a copy of memory, whose result is that it is complete.
"""

# mypy: ignore-errors
# This is triton's language, whose names are types and whose functions are not Python's.

from __future__ import annotations

import triton
import triton.language as tl

# One number a dtype: those with NaN and infinity, then integers, each by width.
E4M3FN = tl.constexpr(0)
E4M3FNUZ = tl.constexpr(1)
E5M2 = tl.constexpr(2)
E5M2FNUZ = tl.constexpr(3)
E8M0FNU = tl.constexpr(4)
FLOAT16 = tl.constexpr(5)
BFLOAT16 = tl.constexpr(6)
FLOAT32 = tl.constexpr(7)
COMPLEX32 = tl.constexpr(8)
FLOAT64 = tl.constexpr(9)
COMPLEX64 = tl.constexpr(10)
UINT8 = tl.constexpr(11)
INT8 = tl.constexpr(12)
UINT16 = tl.constexpr(13)
INT16 = tl.constexpr(14)
UINT32 = tl.constexpr(15)
INT32 = tl.constexpr(16)
UINT64 = tl.constexpr(17)
INT64 = tl.constexpr(18)
COPY = tl.constexpr(19)
"""No dtype: the bytes themselves, elsewhere."""
KINDS = tl.constexpr(20)

REQUEST_WORDS = tl.constexpr(16)
"""Words of 8 bytes from one tensor's request to the next."""
PARTIAL_WORDS = tl.constexpr(5)
MOST_TENSORS = tl.constexpr(64)
"""Tensors of one launch."""

_LARGEST = tl.constexpr(0x7FFF_FFFF_FFFF_FFFF)
_SCALE = tl.constexpr(2.0**-16)
"""Keeps sums of bfloat16's largest values (a mask has many) in float32; exact, for its smallest is 2**-133."""


@triton.jit
def _magnitude(real, imaginary):
    """The magnitude of complex values, which cannot overflow; NaN where either part is."""
    re = real.to(tl.float64)
    im = imaginary.to(tl.float64)
    known = (re == re) & (im == im)
    infinite = (tl.abs(real) == float("inf")) | (tl.abs(imaginary) == float("inf"))
    exact = tl.sqrt(re * re + im * im)
    rounded = exact.to(tl.float32).to(tl.float64)  # as torch gives it, unless that is beyond the type
    return tl.where(known, tl.where(rounded < float("inf"), rounded, exact), float("nan")), infinite


@triton.jit
def _minifloat(byte, mantissa: tl.constexpr, scale: tl.constexpr, nan: tl.constexpr, sign_is_nan: tl.constexpr):
    """Float8 by its bits: sign, exponent, mantissa, moved to where float32 has them, and a scale for the bias."""
    magnitude = byte & 0x7F
    value = (magnitude << (23 - mantissa)).to(tl.float32, bitcast=True) * scale
    if sign_is_nan:
        return tl.where(byte == 0x80, float("nan"), tl.where(byte > 0x7F, -value, value))
    value = tl.where(magnitude == nan, float("nan"), value)
    return tl.where(byte > 0x7F, -value, value)


@triton.jit
def _float_of(bits, kind: tl.constexpr):
    """Values of floating-point and complex kinds from their bits, and which of them are infinite."""
    if kind == COMPLEX64:
        real = bits.to(tl.int32).to(tl.float32, bitcast=True)
        imaginary = (bits >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        return _magnitude(real, imaginary)
    elif kind == COMPLEX32:
        real = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        imaginary = (bits >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return _magnitude(real, imaginary)
    else:
        if kind == FLOAT64:
            value = bits.to(tl.float64, bitcast=True)
        elif kind == FLOAT32:
            value = bits.to(tl.float32, bitcast=True)
        elif kind == BFLOAT16:
            value = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        elif kind == FLOAT16:
            value = bits.to(tl.float16, bitcast=True).to(tl.float32)
        else:
            byte = bits.to(tl.int32) & 0xFF
            if kind == E5M2:
                value = (byte << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            elif kind == E4M3FN:
                value = _minifloat(byte, 3, 2.0**120, 0x7F, False)
            elif kind == E4M3FNUZ:
                value = _minifloat(byte, 3, 2.0**119, 0, True)
            elif kind == E5M2FNUZ:
                value = _minifloat(byte, 2, 2.0**111, 0, True)
            else:
                exponent = tl.where(byte == 0, 0x00400000, byte << 23)
                value = tl.where(byte == 0xFF, 0x7FC00000, exponent).to(tl.float32, bitcast=True)
        return value, tl.abs(value) == float("inf")


@triton.jit
def _integer_of(bits, kind: tl.constexpr):
    """Values of integer kinds; of unsigned 64-bit ones, keys that order like them."""
    if kind == UINT8:
        return bits.to(tl.int32) & 0xFF
    elif kind == UINT16:
        return bits.to(tl.int32) & 0xFFFF
    elif kind == UINT32:
        return bits.to(tl.int64) & 0xFFFFFFFF
    elif kind == UINT64:
        return bits ^ (-_LARGEST - 1)
    elif kind == INT64:
        return bits
    else:
        return bits.to(tl.int32)


@triton.jit
def _floats(bits, kind: tl.constexpr, low, high, total, known, infinite, whole: tl.constexpr):
    """Fold values into the running statistics of each lane; unless they are ``whole``, NaN stands where none is."""
    value, is_infinite = _float_of(bits, kind)
    is_known = value == value
    if kind == FLOAT32:
        part = value.to(tl.float64)
    elif value.dtype == tl.float64:
        part = value
    else:
        part = value * _SCALE
    if not whole:
        part = tl.where(is_known, part, 0.0)
    # A minimum passes over NaN.
    low = tl.minimum(low, _fold_min(value, whole))
    high = tl.maximum(high, _fold_max(value, whole))
    total += _fold_sum(part, whole).to(tl.float64)
    known += _fold_sum(is_known.to(tl.int32), whole)
    infinite += _fold_sum(is_infinite.to(tl.int32), whole)
    return low, high, total, known, infinite


@triton.jit
def _halves(words, kind: tl.constexpr, low, high, total, known, infinite):
    """Fold words of two 16-bit floats into the running statistics of each lane.

    What is not finite is counted in both halves at once: twelve instructions a value by ``_floats`` become eight.
    """
    if kind == BFLOAT16:
        first = (words << 16).to(tl.float32, bitcast=True)
        second = (words & -0x10000).to(tl.float32, bitcast=True)
        to_infinity: tl.constexpr = 0x00800080  # what carries a magnitude into the sign bit
    else:
        first = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        to_infinity: tl.constexpr = 0x04000400
    low = tl.minimum(low, _fold_min(tl.minimum(first, second), True))
    high = tl.maximum(high, _fold_max(tl.maximum(first, second), True))
    total += _fold_sum(first * _SCALE + second * _SCALE, True).to(tl.float64)
    magnitudes = words & 0x7FFF7FFF
    beyond = ((magnitudes + to_infinity) >> 15) & 0x00010001
    nan = ((magnitudes + (to_infinity - 0x00010001)) >> 7) & 0x01000100
    counts = _fold_sum(beyond | nan, True)
    nans = ((counts >> 8) & 0xFF) + ((counts >> 24) & 0xFF)
    infinite += (counts & 0xFF) + ((counts >> 16) & 0xFF) - nans
    known += words.shape[1] * words.shape[2] * 2 - nans
    return low, high, total, known, infinite


@triton.jit
def _integers(bits, mask, kind: tl.constexpr, low, high, total):
    """Fold values, those that ``mask`` names if it is given, into the running statistics of each lane."""
    whole: tl.constexpr = mask is None
    value = _integer_of(bits, kind)
    if kind == UINT64:
        part = bits.to(tl.uint64, bitcast=True).to(tl.float64)
    elif kind == INT64:
        part = value.to(tl.float64)
    elif kind == INT32 or kind == UINT32:
        part = value.to(tl.int64)
    else:
        part = value
    if whole:
        small = value
        large = value
    else:
        most: tl.constexpr = _LARGEST if value.dtype == tl.int64 else 0x7FFFFFFF
        small = tl.where(mask, value, most)
        large = tl.where(mask, value, -most - 1)
        part = tl.where(mask, part, 0)
    low = tl.minimum(low, _fold_min(small, whole).to(tl.int64))
    high = tl.maximum(high, _fold_max(large, whole).to(tl.int64))
    total += _fold_sum(part, whole).to(total.dtype)
    return low, high, total


@triton.jit
def _fold_min(values, whole: tl.constexpr):
    """Over all but the lanes: over values that one thread has."""
    return tl.min(tl.min(values, 2), 1) if whole else tl.min(values, 1)


@triton.jit
def _fold_max(values, whole: tl.constexpr):
    return tl.max(tl.max(values, 2), 1) if whole else tl.max(values, 1)


@triton.jit
def _fold_sum(values, whole: tl.constexpr):
    return tl.sum(tl.sum(values, 2), 1) if whole else tl.sum(values, 1)


@triton.jit
def _key(value):
    """An integer that orders like a float64."""
    bits = value.to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) & _LARGEST)


@triton.jit
def _read(
    address,
    blocks,
    elements,
    head,
    skip,
    extent_0,
    extent_1,
    extent_2,
    stride_0,
    stride_1,
    stride_2,
    stride_3,
    part,
    parts,
    kind: tl.constexpr,
    lanes: tl.constexpr,
    rows: tl.constexpr,
):
    """One part of one tensor: keys of both bounds, sum, and how many values are known and infinite."""
    floating: tl.constexpr = kind <= COMPLEX64
    if kind <= E8M0FNU or (kind >= UINT8 and kind <= INT8):
        stored: tl.constexpr = tl.int8
        item: tl.constexpr = 1
        nan: tl.constexpr = -1 if kind == E8M0FNU else -128 if kind == E4M3FNUZ or kind == E5M2FNUZ else 0x7F
    elif kind == FLOAT16 or kind == BFLOAT16 or kind == UINT16 or kind == INT16:
        stored: tl.constexpr = tl.int16
        item: tl.constexpr = 2
        nan: tl.constexpr = 0x7FC0 if kind == BFLOAT16 else 0x7E00
    elif kind == FLOAT32 or kind == COMPLEX32 or kind == UINT32 or kind == INT32:
        stored: tl.constexpr = tl.int32
        item: tl.constexpr = 4
        nan: tl.constexpr = 0x7E00 if kind == COMPLEX32 else 0x7FC00000
    else:
        stored: tl.constexpr = tl.int64
        item: tl.constexpr = 8
        nan: tl.constexpr = 0x7FC00000 if kind == COMPLEX64 else 0x7FF8000000000000
    wide: tl.constexpr = kind == FLOAT64 or kind == COMPLEX64 or kind == COMPLEX32
    counted: tl.constexpr = tl.float64 if floating or kind >= UINT64 else tl.int64
    bound: tl.constexpr = tl.int64 if not floating else tl.float64 if wide else tl.float32
    lowest: tl.constexpr = float("-inf") if floating else -_LARGEST - 1
    highest: tl.constexpr = float("inf") if floating else _LARGEST
    low = tl.full((lanes,), highest, bound)
    high = tl.full((lanes,), lowest, bound)
    total = tl.zeros((lanes,), counted)
    known = tl.zeros((lanes,), tl.int32)
    infinite = tl.zeros((lanes,), tl.int32)

    lane = tl.arange(0, lanes)[:, None] + tl.arange(0, rows)[None, :] * lanes

    tile: tl.constexpr = rows * lanes
    paired: tl.constexpr = kind == FLOAT16 or kind == BFLOAT16
    width: tl.constexpr = 4 if paired else 16 // item
    body = (address + head * item).to(tl.pointer_type(tl.int32 if paired else stored))
    body = tl.multiple_of(body, 16)
    within = lane[:, :, None] * width + tl.arange(0, width)[None, None, :]
    for block in range(part, blocks, parts):
        bits = tl.load(body + block * (tile * width) + within)
        if paired:
            low, high, total, known, infinite = _halves(bits, kind, low, high, total, known, infinite)
        elif floating:
            low, high, total, known, infinite = _floats(bits, kind, low, high, total, known, infinite, True)
        else:
            low, high, total = _integers(bits, None, kind, low, high, total)

    base = address.to(tl.pointer_type(stored))
    for first in range(part * tile, elements, parts * tile):
        index = (first + lane).to(tl.int32)
        mask = first + lane < elements
        outer = index // extent_0
        offset = (index - outer * extent_0) * stride_0 + tl.where(index >= head, skip, 0)
        index = outer // extent_1
        offset += (outer - index * extent_1) * stride_1
        outer = index // extent_2
        offset += (index - outer * extent_2) * stride_2 + outer * stride_3
        bits = tl.load(base + offset, mask=mask, other=nan)
        if floating:
            low, high, total, known, infinite = _floats(bits, kind, low, high, total, known, infinite, False)
        else:
            low, high, total = _integers(bits, mask, kind, low, high, total)

    sum_ = tl.sum(total, 0).to(tl.float64)
    if floating:
        low_key = _key(tl.min(low, 0).to(tl.float64))
        high_key = _key(tl.max(high, 0).to(tl.float64))
        if not wide and kind != FLOAT32:
            sum_ = sum_ / _SCALE
    else:
        low_key = tl.min(low, 0)
        high_key = tl.max(high, 0)
    return low_key, high_key, sum_, tl.sum(known.to(tl.int64), 0), tl.sum(infinite.to(tl.int64), 0)


@triton.jit
def _copy(source, target, blocks, elements, part, parts, lanes: tl.constexpr, rows: tl.constexpr):
    """One part of a copy: blocks of aligned words, then what is left of them byte by byte."""
    lane = tl.arange(0, lanes)[:, None] + tl.arange(0, rows)[None, :] * lanes
    within = lane[:, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    tile: tl.constexpr = rows * lanes
    words = tl.multiple_of(source.to(tl.pointer_type(tl.int64)), 16)
    copied = tl.multiple_of(target.to(tl.pointer_type(tl.int64)), 16)
    for block in range(part, blocks, parts):
        at = block * (tile * 2) + within
        tl.store(copied + at, tl.load(words + at))
    done = blocks * (tile * 16)
    rest = (source + done).to(tl.pointer_type(tl.int8))
    copied_rest = (target + done).to(tl.pointer_type(tl.int8))
    for first in range(part * tile, elements, parts * tile):
        index = first + lane
        mask = index < elements
        tl.store(copied_rest + index, tl.load(rest + index, mask=mask), mask=mask)
    # Every thread's part of it is there before one thread says so.
    tl.debug_barrier()


@triton.jit
def _publish(result, token, kind, low, high, total, known, infinite):
    """Write one tensor's result where the host reads it; its token last, once all else is there."""
    # What was done to the bits of a negative float64 to make a key of it is undone by doing it again.
    floating = kind <= COMPLEX64
    tl.store(result, tl.where(floating, low ^ ((low >> 63) & _LARGEST), low))
    tl.store(result + 1, tl.where(floating, high ^ ((high >> 63) & _LARGEST), high))
    tl.store(result + 2, total.to(tl.int64, bitcast=True))
    tl.store(result + 3, known)
    tl.store(result + 4, infinite)
    tl.atomic_xchg(result + 5, token, sem="release", scope="sys")


@triton.jit
def statistics(
    requests,
    scratch,
    kinds: tl.constexpr,
    lanes: tl.constexpr,
    rows: tl.constexpr,
    most: tl.constexpr,
):
    """Read all tensors of ``requests``, an address as the others are.

    Args:
        requests: ``REQUEST_WORDS`` a tensor: address, kind, parts, blocks, elements, head, skip, three extents,
            four strides from the innermost outwards, in elements; token; and where the result goes, of which five
            words and the token are written. A copy has its target in the place of ``skip``. Without parts nothing
            is read and nothing written.
        scratch: device memory: ``MOST_TENSORS`` words of zero, then ``PARTIAL_WORDS`` words a part of each tensor.
        kinds: a bit for each kind that it can read.
        lanes: threads of a program.
        rows: 16-byte blocks that a thread has under way at once.
        most: parts of a tensor, at most; a power of 2.
    """
    part = tl.program_id(0)
    which = tl.program_id(1)
    request = (requests + which * (REQUEST_WORDS * 8)).to(tl.pointer_type(tl.int64))
    # All of it at once, before the first use: each look at host memory takes the device 2 µs.
    parts = tl.load(request + 2).to(tl.int32)
    kind = tl.load(request + 1).to(tl.int32)
    address = tl.load(request)
    blocks = tl.load(request + 3)
    elements = tl.load(request + 4)
    head = tl.load(request + 5)
    skip = tl.load(request + 6)
    extent_0 = tl.load(request + 7).to(tl.int32)
    extent_1 = tl.load(request + 8).to(tl.int32)
    extent_2 = tl.load(request + 9).to(tl.int32)
    stride_0 = tl.load(request + 10)
    stride_1 = tl.load(request + 11)
    stride_2 = tl.load(request + 12)
    stride_3 = tl.load(request + 13)
    token = tl.load(request + 14)
    result = tl.load(request + 15).to(tl.pointer_type(tl.int64))
    if part >= parts:
        return
    low = token  # these five take their types from here
    high = token
    total = token.to(tl.float64)
    known = token
    infinite = token
    for each in tl.static_range(KINDS):
        if (kinds >> each) & 1:  # known when it is compiled, the next is not
            if kind == each:
                if each == COPY:
                    _copy(address, skip, blocks, elements, part, parts, lanes, rows)
                else:
                    low, high, total, known, infinite = _read(
                        address,
                        blocks,
                        elements,
                        head,
                        skip,
                        extent_0,
                        extent_1,
                        extent_2,
                        stride_0,
                        stride_1,
                        stride_2,
                        stride_3,
                        part,
                        parts,
                        each,
                        lanes,
                        rows,
                    )
    if parts == 1:
        _publish(result, token, kind, low, high, total, known, infinite)
    else:
        counter = (scratch + which * 8).to(tl.pointer_type(tl.int64))
        partials = (scratch + (MOST_TENSORS + which * most * PARTIAL_WORDS) * 8).to(tl.pointer_type(tl.int64))
        mine = partials + part
        tl.store(mine, low)
        tl.store(mine + most, high)
        tl.store(mine + 2 * most, total.to(tl.int64, bitcast=True))
        tl.store(mine + 3 * most, known)
        tl.store(mine + 4 * most, infinite)
        if tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1:
            each_part = partials + tl.arange(0, most)
            there = tl.arange(0, most) < parts
            # Past the first-level cache, which is this multiprocessor's own.
            lows = tl.load(each_part, mask=there, other=_LARGEST, cache_modifier=".cg")
            highs = tl.load(each_part + most, mask=there, other=-_LARGEST - 1, cache_modifier=".cg")
            totals = tl.load(each_part + 2 * most, mask=there, other=0, cache_modifier=".cg")
            knowns = tl.load(each_part + 3 * most, mask=there, other=0, cache_modifier=".cg")
            infinites = tl.load(each_part + 4 * most, mask=there, other=0, cache_modifier=".cg")
            total = tl.sum(totals.to(tl.float64, bitcast=True), 0)
            tl.store(counter, 0)
            low = tl.min(lows, 0)
            high = tl.max(highs, 0)
            _publish(result, token, kind, low, high, total, tl.sum(knowns, 0), tl.sum(infinites, 0))
