"""What torch, CUDA and the libraries around them print when they fail, as patterns over single lines.

torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of …
RuntimeError: CUDA error: an illegal memory access was encountered
"""

from __future__ import annotations

import re
from typing import NamedTuple

OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|MemoryError", re.IGNORECASE
)
DEVICE_ERROR = re.compile(
    r"CUDA error|cudaError|illegal memory access|device-side assert|misaligned address|Triton Error"
    r"|illegal instruction|unspecified launch failure|CUBLAS_STATUS_(?!ALLOC_FAILED)\w+|an illegal address"
)
"""Errors of the device; most surface at a later call than the one whose kernel failed."""
_ASKED = re.compile(r"[Tt]ried to allocate (?P<size>\d{1,18}(?:\.\d{1,6})?) ?(?P<unit>bytes|[KMGT]iB)", re.ASCII)
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Asked(NamedTuple):
    """The size of an allocation in bytes, and how far the message may have rounded it."""

    nbytes: int
    within: int


def asked_for(message: str) -> Asked | None:
    """The allocation that a message on memory says was tried."""
    match = _ASKED.search(message)
    if match is None:
        return None
    unit = _UNITS[match["unit"]]
    whole, _, decimals = match["size"].partition(".")
    part = int(decimals) * unit // 10 ** len(decimals) if decimals else 0
    return Asked(int(whole) * unit + part, unit // 10 ** len(decimals) if decimals else 0)
