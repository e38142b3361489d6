"""What the vendors' backends have in common: kernels that take dense rows and write into what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

VECTOR_BYTES = 16
"""Of what one thread loads at once; rows of another length are left to others."""


def rows(x: torch.Tensor) -> torch.Tensor:
    """A tensor as dense rows, ``[rows, n]``."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def whole_vectors(x: torch.Tensor, *_: Any, **__: Any) -> str:
    """Why a kernel that loads whole vectors cannot take the halves of a row; empty where it can."""
    half = x.shape[-1] * x.element_size() // 2
    return "" if half % VECTOR_BYTES == 0 else f"half a row is {half} bytes, not a multiple of {VECTOR_BYTES}"


def only_on(device: str, *dtypes: torch.dtype) -> Callable[..., str]:
    """Why a call is not for kernels of one device type and these dtypes; empty where it is."""

    def fits(x: torch.Tensor, *_: Any, **__: Any) -> str:
        if x.device.type != device:
            return f"its tensors are on {x.device.type}"
        return "" if x.dtype in dtypes else f"there is no kernel for {x.dtype}"

    return fits


def all_of(*checks: Callable[..., str]) -> Callable[..., str]:
    """The first reason of several."""

    def fits(*args: Any, **kwargs: Any) -> str:
        return next((reason for check in checks if (reason := check(*args, **kwargs))), "")

    return fits


def rotated_in_place(
    kernel: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool,
    table: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a rotary kernel of the form that vLLM, sgl_kernel and FlashInfer share.

    Args:
        kernel: takes positions, query and key as ``[tokens, heads * head_dim]``, head size, table and style.
        query, key, cos, sin, positions, interleaved: as the operator's.
        table: the dtype that the kernel wants of cosines and sines.
    """
    size = query.shape[-1]
    flat_q, flat_k = (x.reshape(x.shape[0], -1).contiguous() for x in (query, key))
    kernel(positions.long(), flat_q, flat_k, size, torch.cat((cos, sin), dim=-1).to(table), not interleaved)
    return flat_q.view(query.shape), flat_k.view(key.shape)
