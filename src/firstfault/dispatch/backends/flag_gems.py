"""FlagGems' Triton kernels: ``flagos(flagos)``, through the installed ``flag_gems``.

What its functions ask for that our operators do not (a whole head to rotate, dense inputs) is met here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from firstfault.dispatch.backends.triton import NARROW
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry

NAME = "flagos"
MOST_EXPERTS_OF_A_TOKEN = 32
"""Beyond it ``flag_gems.topk_softmax`` refuses."""


@functools.cache
def _gems() -> ModuleType:
    return importlib.import_module("flag_gems")


@functools.cache
def available() -> str:
    """Why FlagGems cannot be used here; empty where it can."""
    if importlib.util.find_spec("flag_gems") is None:
        return "flag_gems is not installed"
    if not torch.accelerator.is_available():
        return "there is no GPU that flag_gems could run on"
    try:
        _gems()
    except Exception as error:
        return f"flag_gems cannot be imported: {type(error).__name__}: {error}"
    return ""


def on_device(x: torch.Tensor, *_: Any, **__: Any) -> str:
    """Why a call is not for FlagGems; empty where it is."""
    if x.device.type == "cpu":
        return "its tensors are on the CPU"
    return "" if x.dtype in NARROW else f"{x.dtype} is not computed in float32"


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    return _gems().silu_and_mul(*x.chunk(2, dim=-1))  # type: ignore[no-any-return]


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """As the reference."""
    return _gems().gelu_and_mul(*x.chunk(2, dim=-1), approximate)  # type: ignore[no-any-return]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference."""
    return _gems().rms_norm(x, list(weight.shape), weight, eps)  # type: ignore[no-any-return]


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; writes over ``x`` and ``residual``."""
    return _gems().fused_add_rms_norm(x, residual, list(weight.shape), weight, eps)  # type: ignore[no-any-return]


def rotary_embedding(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference: the kernel takes the rotated part alone, the rest of a head is put behind it."""
    rotary = 2 * cos.shape[-1]
    parts = query[..., :rotary], key[..., :rotary]
    turned = _gems().apply_rotary_pos_emb(*parts, cos, sin, positions, interleaved, False)
    whole = [torch.cat((part, x[..., rotary:]), dim=-1) for part, x in zip(turned, (query, key), strict=True)]
    return whole[0], whole[1]


def topk_softmax(gating: torch.Tensor, k: int, renormalize: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference."""
    shape = (gating.shape[0], k)
    weights = torch.empty(shape, dtype=torch.float32, device=gating.device)
    ids, places = (torch.empty(shape, dtype=torch.int32, device=gating.device) for _ in range(2))
    _gems().topk_softmax(weights, ids, places, gating.contiguous(), renormalize)
    return weights, ids


def moe_align_block_size(
    topk_ids: torch.Tensor, block_size: int, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the reference."""
    return _gems().moe_align_block_size(topk_ids, block_size, num_experts)  # type: ignore[no-any-return]


def fused_moe(
    hidden: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
) -> torch.Tensor:
    """As the reference."""
    return _gems().outplace_fused_experts(hidden.contiguous(), w1, w2, topk_weights, topk_ids)  # type: ignore[no-any-return]


def _topk_fits(gating: torch.Tensor, k: int, *_: Any, **__: Any) -> str:
    if k > MOST_EXPERTS_OF_A_TOKEN:
        return f"more than {MOST_EXPERTS_OF_A_TOKEN} experts a token"
    return on_device(gating)


def _ids_fit(topk_ids: torch.Tensor, *_: Any, **__: Any) -> str:
    return "its tensors are on the CPU" if topk_ids.device.type == "cpu" else ""


def add(registry: Registry) -> None:
    """Add these backends."""
    fits: dict[Callable[..., Any], Callable[..., str]] = {
        silu_and_mul: on_device,
        gelu_and_mul: on_device,
        rms_norm: on_device,
        fused_add_rms_norm: on_device,
        rotary_embedding: on_device,
        topk_softmax: _topk_fits,
        moe_align_block_size: _ids_fit,
        fused_moe: on_device,
    }
    for run, fit in fits.items():
        registry.add(Backend(run.__name__, Kind.FLAGOS, NAME, run, available=available, fits=fit))
