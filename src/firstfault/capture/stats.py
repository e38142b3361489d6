"""Statistics of one tensor: min, max, mean, and how many values are NaN or infinite.

Two passes over the values where they are all finite; further ones only to count what is not.
"""

from __future__ import annotations

import math

import torch

from firstfault.capture.describe import Found
from firstfault.record import schema
from firstfault.record.text_log import CAPTURE_SKIP

_READY = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_READY_INTEGER = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
_WIDENED_INTEGER = {torch.bool: torch.uint8, torch.uint16: torch.int32, torch.uint32: torch.int64}
_FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of e2m1's eight magnitudes (OCP Microscaling Formats 1.0, table 5)."""

EMPTY = "[empty tensor]"
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
            return
        _fill(described, tensor.detach())
    except Exception as error:
        described.statistics = f"[unavailable: {type(error).__name__}]"


def _fill(described: schema.Tensor, tensor: torch.Tensor) -> None:
    dtype = tensor.dtype
    if dtype in _READY:
        _floating(described, tensor)
    elif dtype in _READY_INTEGER:
        _integer(described, tensor)
    elif dtype in _WIDENED_INTEGER:
        _integer(described, tensor.to(_WIDENED_INTEGER[dtype]))
    elif dtype == torch.uint64:
        _unsigned_64(described, tensor)
    elif dtype in _COMPLEX:
        _complex(described, tensor)
    elif tensor.is_quantized:
        _floating(described, tensor.dequantize())
    elif dtype == getattr(torch, "float4_e2m1fn_x2", None):
        _floating(described, _unpack_float4(tensor))
    elif dtype.is_floating_point:
        _floating(described, tensor.to(torch.float32))
    else:
        described.statistics = f"[skipped: torch has no arithmetic for {dtype}]"


def _floating(described: schema.Tensor, values: torch.Tensor) -> None:
    low, high = (bound.item() for bound in torch.aminmax(values))
    accumulate = torch.float64 if values.dtype == torch.float64 else torch.float32
    described.mean = _statistic(values.mean(dtype=accumulate).item())
    described.nan_count = described.inf_count = 0
    if math.isnan(low):
        low, high, described.nan_count = _bounds_without_nan(values)
    if math.isinf(low) or math.isinf(high):
        described.inf_count = int(torch.isinf(values).sum().item())
    described.min, described.max = _statistic(low), _statistic(high)


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
    """Order-preserving map onto int64 (flip the top bit), which torch can reduce."""
    half = 2**63
    shifted = tensor.view(torch.int64) ^ -half
    low, high = torch.aminmax(shifted)
    described.min, described.max = int(low.item()) + half, int(high.item()) + half
    described.mean = shifted.mean(dtype=torch.float64).item() + half


def _complex(described: schema.Tensor, tensor: torch.Tensor) -> None:
    wide = tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor
    _floating(described, wide.abs())
    described.nan_count = int(torch.isnan(wide).sum().item())
    described.inf_count = int(torch.isinf(wide).sum().item())


def _unpack_float4(tensor: torch.Tensor) -> torch.Tensor:
    """The two values in each byte, low nibble first: sign bit, then a magnitude's number."""
    packed = tensor.view(torch.uint8)
    nibbles = torch.stack((packed & 0xF, packed >> 4))
    table = torch.tensor(_FLOAT4_VALUES + tuple(-value for value in _FLOAT4_VALUES), device=tensor.device)
    return table[nibbles.long()]


def _statistic(value: float) -> schema.Statistic:
    """JSON has no NaN or infinity: those travel by name."""
    return value if math.isfinite(value) else str(value)
