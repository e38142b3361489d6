"""Statistics of one tensor: min, max, mean, and how many values are NaN or infinite.

Two passes over the values where they are all finite; further ones only to count what is not.
"""

from __future__ import annotations

import math

import torch

from firstfault.capture.describe import Found, storage_bytes_needed
from firstfault.record import schema
from firstfault.record.text_log import CAPTURE_SKIP

_READY = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_READY_INTEGER = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
_WIDENED_INTEGER = {torch.bool: torch.uint8, torch.uint16: torch.int32, torch.uint32: torch.int64}
_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)
_FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of e2m1's eight magnitudes (OCP Microscaling Formats 1.0, table 5)."""

EMPTY = "[empty tensor]"
SHRUNK = "[unavailable: its storage was resized]"
SKIPPED_IN_CAPTURE = f"[skipped: {CAPTURE_SKIP}]"


def fill_all(found: list[Found], skip: str | None, *, capturing: bool) -> None:
    """Write the statistics of each tensor into its description, or the reason why there are none.

    Args:
        found: the tensors of one side of a call.
        skip: why no values may be read just now, or None.
        capturing: whether a CUDA graph is being captured, when device values must not be read.
    """
    for item in found:
        if item.unreachable is not None or skip is not None:
            item.described.statistics = f"[skipped: {item.unreachable or skip}]"
        elif capturing and item.tensor.device.type != "cpu":
            item.described.statistics = SKIPPED_IN_CAPTURE
        else:
            fill(item.described, item.tensor)


def fill(described: schema.Tensor, tensor: torch.Tensor) -> None:
    """Write the statistics of ``tensor`` into ``described``, or the reason why there are none."""
    try:
        if tensor.numel() == 0:
            described.statistics = EMPTY
        elif tensor.untyped_storage().nbytes() < _end_of(tensor, described):
            described.statistics = SHRUNK  # torch would read past its end
        else:
            plain = tensor.detach() if described.requires_grad else tensor
            _fill(described, *((plain, 1) if described.contiguous else _without_repeats(plain)))
    except Exception as error:
        described.statistics = f"[unavailable: {type(error).__name__}]"


def _end_of(tensor: torch.Tensor, described: schema.Tensor) -> int:
    """How many bytes of its storage a tensor reaches over."""
    if described.contiguous and described.ptr:
        return described.ptr - described.storage + described.nbytes
    return storage_bytes_needed(tensor)


def _without_repeats(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """An expanded tensor shrunk to the values that it has, and how often each of them stands in it."""
    times = 1
    for dim, (extent, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if step == 0 and extent > 1:
            tensor = tensor.narrow(dim, 0, 1)
            times *= extent
    return tensor, times


def _fill(described: schema.Tensor, tensor: torch.Tensor, times: int) -> None:
    dtype = tensor.dtype
    if dtype in _READY:
        _floating(described, tensor, times)
    elif dtype in _READY_INTEGER:
        _integer(described, tensor)
    elif dtype in _WIDENED_INTEGER:
        _integer(described, tensor.to(_WIDENED_INTEGER[dtype]))
    elif dtype == torch.uint64:
        _unsigned_64(described, tensor)
    elif dtype in _COMPLEX:
        _complex(described, tensor, times)
    elif tensor.is_quantized:
        _floating(described, tensor.dequantize(), times)
    elif dtype == _FLOAT4:
        _floating(described, _unpack_float4(tensor), times)
    elif dtype.is_floating_point:
        _floating(described, tensor.to(torch.float32), times)
    else:
        described.statistics = f"[skipped: torch has no arithmetic for {dtype}]"


def _floating(described: schema.Tensor, values: torch.Tensor, times: int) -> None:
    lowest, highest = torch.aminmax(values)
    low, high = lowest.item(), highest.item()
    # What torch's mean is made of; by itself it takes 5 µs more.
    total = values.sum(dtype=torch.float64 if values.dtype == torch.float64 else torch.float32).item()
    mean = total / values.numel()
    nan_count = inf_count = 0
    if math.isnan(low):
        low, high, nan_count = _bounds_without_nan(values)
    if math.isinf(low) or math.isinf(high):
        inf_count = int(torch.isinf(values).sum().item())
    elif not nan_count and not math.isfinite(mean):
        mean = _mean_without_overflow(values)
    described.min, described.max, described.mean = map(_statistic, (low, high, mean))
    described.nan_count, described.inf_count = nan_count * times, inf_count * times


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


def _integer(described: schema.Tensor, values: torch.Tensor) -> None:
    low, high = torch.aminmax(values)
    described.min, described.max = int(low.item()), int(high.item())
    described.mean = values.mean(dtype=torch.float64).item()


def _unsigned_64(described: schema.Tensor, tensor: torch.Tensor) -> None:
    """Two maps onto int64, which torch can reduce: one keeps the order, the other keeps small numbers exact."""
    half = 2**63
    signed = tensor.view(torch.int64)
    low, high = torch.aminmax(signed ^ -half)
    described.min, described.max = int(low.item()) + half, int(high.item()) + half
    wrapped = (signed < 0).mean(dtype=torch.float64).item()
    described.mean = signed.mean(dtype=torch.float64).item() + wrapped * 2**64


def _complex(described: schema.Tensor, tensor: torch.Tensor, times: int) -> None:
    """Statistics of the magnitudes, where a value with a NaN in either part has none."""
    wide = tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor
    nan, infinite = torch.isnan(wide), torch.isinf(wide)
    _floating(described, wide.abs().masked_fill(nan, math.nan), times)
    described.nan_count = int(nan.sum().item()) * times
    infinite_count = int(infinite.sum().item())
    if described.max == "inf" and not infinite_count:  # the magnitude is beyond the type, its parts are not
        _floating(described, wide.to(torch.complex128).abs().masked_fill(nan, math.nan), times)
    described.inf_count = infinite_count * times


def _unpack_float4(tensor: torch.Tensor) -> torch.Tensor:
    """The two values in each byte, low nibble first: sign bit, then a magnitude's number."""
    packed = tensor.view(torch.uint8)
    nibbles = torch.stack((packed & 0xF, packed >> 4))
    values = _FLOAT4_VALUES + tuple(-value for value in _FLOAT4_VALUES)
    table = torch.tensor(values, dtype=torch.float32, device=tensor.device)
    return table[nibbles.long()]


def _statistic(value: float) -> schema.Statistic:
    """JSON has no NaN or infinity: those travel by name."""
    return value if math.isfinite(value) else str(value)
