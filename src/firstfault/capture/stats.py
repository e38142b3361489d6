"""Statistics of tensors: min, max, mean, and how many values are NaN or infinite.

The CUDA tensors of one side of a call are read together, each value once (``device_stats``). Any other tensor is
read by torch: two passes over the values where they are all finite; further ones only to count what is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from firstfault import settings
from firstfault.capture import device_stats, guard
from firstfault.capture.describe import Found, storage_bytes_needed
from firstfault.capture.progress import MarkersUnavailable
from firstfault.record import schema
from firstfault.record.plain import plain_number
from firstfault.record.statistics_page import Statistics
from firstfault.record.text_log import CAPTURE_SKIP

_READY = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32) | {torch.float64: torch.float64}
"""Types that torch can reduce, and the one that it sums them in."""
_READY_INTEGER = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
_WIDENED_INTEGER = {torch.bool: torch.uint8, torch.uint16: torch.int32, torch.uint32: torch.int64}
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)
_FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of e2m1's eight magnitudes (OCP Microscaling Formats 1.0, table 5)."""

EMPTY = "[empty tensor]"
SHRUNK = "[unavailable: its storage was resized]"
SKIPPED_IN_CAPTURE = f"[skipped: {CAPTURE_SKIP}]"


def out_of_reach() -> str | None:
    """Why not every tensor may be read just now, or None."""
    return guard.values_out_of_reach() or (CAPTURE_SKIP if guard.graph_capture_active() else None)


def fill_all(found: list[Found]) -> None:
    """Write the statistics of each tensor into its description, or the reason why there are none."""
    readable = within_reach(found)
    statistics = read_all([item.tensor for item in readable], [item.described.contiguous for item in readable])
    for item, each in zip(readable, statistics, strict=True):
        fill(item.described, each)


def within_reach(found: list[Found], *, at_replays: bool = False) -> list[Found]:
    """The tensors that may be read just now, or ``at_replays`` of the CUDA graph that is being captured.

    Into the descriptions of the others goes why not.
    """
    skip = guard.values_out_of_reach()
    most = settings.current().statistics_max_bytes
    capturing = not at_replays and guard.graph_capture_active()
    readable = []
    for item in found:
        if item.unreachable is not None or skip is not None:
            item.described.statistics = f"[skipped: {item.unreachable or skip}]"
        elif item.described.nbytes > most and _bytes_read(item) > most:
            item.described.statistics = too_large(most)
        elif capturing and item.tensor.device.type != "cpu":
            item.described.statistics = SKIPPED_IN_CAPTURE
        else:
            readable.append(item)
    return readable


def too_large(most: int) -> str:
    """Why a tensor of more than ``most`` bytes is not read."""
    return f"[skipped: larger than FIRSTFAULT_STATS_MAX_BYTES, {most} bytes]"


def _bytes_read(item: Found) -> int:
    """How much of memory a tensor's values take: of an expanded one less than it has elements."""
    described = item.described
    if described.stride is None:
        return described.nbytes
    return min(described.nbytes, reach(item.tensor, contiguous=described.contiguous))


def fill(described: schema.Tensor, found: Statistics | str) -> None:
    """Write statistics into a description, or in brackets the reason why there are none."""
    if isinstance(found, str):
        described.statistics = found
    else:
        described.min, described.max, described.mean, described.nan_count, described.inf_count = found


def read_all(tensors: Sequence[torch.Tensor], contiguous: Sequence[bool]) -> list[Statistics | str]:
    """The statistics of each tensor, or in brackets the reason why there are none; it never raises.

    Args:
        tensors: those of one side of a call.
        contiguous: whether each of them is.
    """
    reader = device_stats.reader() if any(tensor.is_cuda for tensor in tensors) else None
    if reader is None:
        return read_each(tensors, contiguous)
    found = _read_on_device(reader, tensors, contiguous)
    return [
        read(tensor, contiguous=each) if statistics is None else statistics
        for tensor, each, statistics in zip(tensors, contiguous, found, strict=True)
    ]


def read_each(tensors: Sequence[torch.Tensor], contiguous: Sequence[bool]) -> list[Statistics | str]:
    """The same, of tensors that torch reads one by one."""
    return [read(tensor, contiguous=each) for tensor, each in zip(tensors, contiguous, strict=True)]


def _read_on_device(
    reader: device_stats.Reader, tensors: Sequence[torch.Tensor], contiguous: Sequence[bool]
) -> Sequence[Statistics | str | None]:
    """What the device can read by itself, or in brackets why there is nothing; None where torch has to."""
    found: list[Statistics | str | None] = [None] * len(tensors)
    try:
        there = [index for index, tensor in enumerate(tensors) if tensor.is_cuda]
        for index in there:
            found[index] = nothing_to_read(tensors[index], contiguous=contiguous[index])
        there = [index for index in there if found[index] is None]
        for index, statistics in zip(there, reader.read([tensors[index] for index in there]), strict=True):
            found[index] = statistics
    except (device_stats.Unavailable, MarkersUnavailable) as reason:
        device_stats.give_up(reason)
    except Exception as error:
        guard.internal_error("reading statistics on the device", error)
    return found


def read(tensor: torch.Tensor, *, contiguous: bool) -> Statistics | str:
    """The statistics of ``tensor`` as torch reads them, or in brackets why there are none; it never raises."""
    try:
        if (reason := nothing_to_read(tensor, contiguous=contiguous)) is not None:
            return reason
        plain = tensor.detach() if tensor.requires_grad else tensor
        return _read(plain, 1) if contiguous else _read(*_without_repeats(plain))
    except Exception as error:
        return f"[unavailable: {type(error).__name__}]"


def nothing_to_read(tensor: torch.Tensor, *, contiguous: bool) -> str | None:
    """Why a tensor has no values that could be read, or None."""
    if tensor.numel() == 0:
        return EMPTY
    start = int(tensor.storage_offset()) * tensor.itemsize
    short = tensor.untyped_storage().nbytes() < start + reach(tensor, contiguous=contiguous)
    return SHRUNK if short else None  # torch would read past its end


def reach(tensor: torch.Tensor, *, contiguous: bool) -> int:
    """Bytes of its storage from a tensor's first element to its last."""
    if contiguous:
        return tensor.numel() * tensor.itemsize
    return storage_bytes_needed(tensor) - int(tensor.storage_offset()) * tensor.itemsize


def _without_repeats(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """An expanded tensor shrunk to the values that it has, and how often each of them stands in it."""
    times = 1
    for dim, (extent, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and extent > 1:
            tensor = tensor.narrow(dim, 0, 1)
            times *= extent
    return tensor, times


def _read(tensor: torch.Tensor, times: int) -> Statistics | str:
    dtype = tensor.dtype
    if (summed_in := _READY.get(dtype)) is not None:
        return _floating(tensor, times, summed_in)
    if dtype in _READY_INTEGER:
        return _integer(tensor)
    if dtype in _WIDENED_INTEGER:
        return _integer(tensor.to(_WIDENED_INTEGER[dtype]))
    if dtype == torch.uint64:
        return _unsigned_64(tensor)
    if dtype in _COMPLEX:
        return _complex(tensor, times)
    if tensor.is_quantized:
        return _floating(tensor.dequantize(), times)
    if dtype == _FLOAT4:
        return _floating(_unpack_float4(tensor), times)
    if dtype.is_floating_point:
        return _floating(tensor.to(torch.float32), times)
    return f"[skipped: torch has no arithmetic for {dtype}]"


def _floating(values: torch.Tensor, times: int, summed_in: torch.dtype = torch.float32) -> Statistics:
    lowest, highest = values.aminmax()
    low, high = lowest.item(), highest.item()
    # What torch's mean is made of; by itself it takes 5 µs more.
    mean = values.sum(dtype=summed_in).item() / values.numel()
    if math.isfinite(low + high + mean):
        return Statistics(low, high, mean, 0, 0)
    nan_count = inf_count = 0
    if math.isnan(low):
        low, high, nan_count = _bounds_without_nan(values)
    if math.isinf(low) or math.isinf(high):
        inf_count = int(torch.isinf(values).sum().item())
    elif not nan_count and not math.isfinite(mean):
        mean = _mean_without_overflow(values)
    return Statistics(plain_number(low), plain_number(high), plain_number(mean), nan_count * times, inf_count * times)


def _mean_without_overflow(values: torch.Tensor) -> float:
    """The mean of finite values whose sum is beyond the type, as that of a mask of lowest values is."""
    return float(values.to(torch.float64).div(values.numel()).sum().item())


def _bounds_without_nan(values: torch.Tensor) -> tuple[float, float, int]:
    nan = torch.isnan(values)
    count = int(nan.sum().item())
    if count == values.numel():
        return math.nan, math.nan, count
    low = values.masked_fill(nan, math.inf).amin().item()
    high = values.masked_fill(nan, -math.inf).amax().item()
    return low, high, count


def _integer(values: torch.Tensor) -> Statistics:
    low, high = torch.aminmax(values)
    return Statistics(int(low.item()), int(high.item()), values.mean(dtype=torch.float64).item())


def _unsigned_64(tensor: torch.Tensor) -> Statistics:
    """Two maps onto int64, which torch can reduce: one keeps the order, the other keeps small numbers exact."""
    half = 2**63
    signed = tensor.view(torch.int64)
    low, high = torch.aminmax(signed ^ -half)
    wrapped = (signed < 0).mean(dtype=torch.float64).item()
    mean = signed.mean(dtype=torch.float64).item() + wrapped * 2**64
    return Statistics(int(low.item()) + half, int(high.item()) + half, mean)


def _complex(tensor: torch.Tensor, times: int) -> Statistics:
    """Statistics of the magnitudes, where a value with a NaN in either part has none."""
    wide = tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor
    nan, infinite = torch.isnan(wide), torch.isinf(wide)
    summed_in = torch.float64 if wide.dtype == torch.complex128 else torch.float32
    magnitudes = _floating(wide.abs().masked_fill(nan, math.nan), times, summed_in)
    infinite_count = int(infinite.sum().item())
    if magnitudes.max == "inf" and not infinite_count:  # the magnitude is beyond the type, its parts are not
        magnitudes = _floating(wide.to(torch.complex128).abs().masked_fill(nan, math.nan), times, torch.float64)
    return magnitudes._replace(nan_count=int(nan.sum().item()) * times, inf_count=infinite_count * times)


def _unpack_float4(tensor: torch.Tensor) -> torch.Tensor:
    """The two values in each byte, low nibble first: sign bit, then a magnitude's number."""
    packed = tensor.view(torch.uint8)
    nibbles = torch.stack((packed & 0xF, packed >> 4))
    values = _FLOAT4_VALUES + tuple(-value for value in _FLOAT4_VALUES)
    table = torch.tensor(values, dtype=torch.float32, device=tensor.device)
    return table[nibbles.long()]
