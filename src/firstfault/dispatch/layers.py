"""Layer classes whose calls are dispatched: what a module is given, turned into what its operator is given.

    found = find(module)                    # SiluAndMul → silu_and_mul
    forward = routed(module, its_own)       # its_own where the policy leaves the class alone

The classes are those of SGLang, which other programs name alike; a module that does what its operator does not (a norm
over part of its input, a rotation that fills the KV cache) keeps its own forward, call by call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from firstfault.dispatch import policy as policies
from firstfault.dispatch.calls import call
from firstfault.dispatch.policy import LAYER_OPERATORS


class Unfit(Exception):
    """This call is not what the operator does; the module's own forward runs."""


def refuse(module: Any, *flags: str, **given: Any) -> None:
    """Refuse a module with any of these attributes set, or a call with any of these arguments."""
    for name in flags:
        if getattr(module, name, None):
            raise Unfit(name)
    for name, value in given.items():
        if value is not None:
            raise Unfit(name)


def _attribute(module: Any, *names: str) -> Any:
    """The first of these attributes that the module has."""
    for name in names:
        if (value := getattr(module, name, None)) is not None:
            return value
    raise Unfit(f"no {names[0]}")


def silu_and_mul(module: Any, x: torch.Tensor, **given: Any) -> torch.Tensor:
    """``SiluAndMul.forward(x)``."""
    refuse(module, **given)
    return call("silu_and_mul", x, layer=type(module).__name__)  # type: ignore[no-any-return]


def gelu_and_mul(module: Any, x: torch.Tensor, **given: Any) -> torch.Tensor:
    """``GeluAndMul.forward(x)``."""
    refuse(module, **given)
    approximate = getattr(module, "approximate", "tanh")
    return call("gelu_and_mul", x, approximate, layer=type(module).__name__)  # type: ignore[no-any-return]


def rms_norm(
    module: Any, x: torch.Tensor, residual: Any = None, post_residual_addition: Any = None, **given: Any
) -> Any:
    """``RMSNorm.forward(x, residual=None)``; with a residual, the norm of the sum and the sum."""
    refuse(module, "cast_x_before_out_mul", "fp32_residual", "variance_size_override", "override_orig_dtype", **given)
    refuse(module, "_quant_linear", "x_pad_to_multiple")
    weight, eps = _attribute(module, "weight"), _attribute(module, "variance_epsilon", "eps")
    if residual is None:
        refuse(module, post_residual_addition=post_residual_addition)
        return call("rms_norm", x, weight.detach(), eps, layer=type(module).__name__)
    if post_residual_addition is not None:
        residual = residual + post_residual_addition
    return call("fused_add_rms_norm", x, residual, weight.detach(), eps, layer=type(module).__name__)


def gemma_rms_norm(
    module: Any, x: torch.Tensor, residual: Any = None, post_residual_addition: Any = None, **given: Any
) -> Any:
    """``GemmaRMSNorm.forward(x, residual=None)``; with a residual, the norm of the rounded sum and that sum."""
    refuse(module, **given)
    weight, eps = _attribute(module, "weight"), _attribute(module, "variance_epsilon", "eps")
    if residual is None:
        refuse(module, post_residual_addition=post_residual_addition)
        return call("gemma_rms_norm", x, weight.detach(), eps, layer=type(module).__name__)
    if post_residual_addition is not None:
        residual = residual + post_residual_addition
    total = x + residual
    return call("gemma_rms_norm", total, weight.detach(), eps, layer=type(module).__name__), total


def _heads(module: Any, query: torch.Tensor, key: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key as ``[tokens, heads, head_dim]``."""
    size = _attribute(module, "head_size")
    return query.view(tokens, -1, size), key.view(tokens, -1, size)


def rotary_embedding(
    module: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, offsets: Any = None, **given: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``RotaryEmbedding.forward(positions, query, key, offsets=None)``."""
    refuse(module, **given)
    if positions.ndim != 1 or key is None:
        raise Unfit("positions of more dimensions")
    if offsets is not None:
        positions = positions + offsets
    cos, sin = _attribute(module, "cos_sin_cache").to(query.device).chunk(2, dim=-1)
    q, k = _heads(module, query, key, positions.numel())
    interleaved = not getattr(module, "is_neox_style", True)
    name = type(module).__name__
    turned_q, turned_k = call("rotary_embedding", q, k, cos, sin, positions, interleaved, layer=name)
    return turned_q.reshape(query.shape), turned_k.reshape(key.shape)


def mrotary_embedding(
    module: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``MRotaryEmbedding.forward(positions, query, key)``; text alone has one row of positions for all axes."""
    refuse(module, "mrope_interleaved_glm", **given)
    if positions.ndim == 1:
        positions = positions.expand(3, -1)
    cos, sin = _attribute(module, "cos_sin_cache").to(query.device).chunk(2, dim=-1)
    q, k = _heads(module, query, key, positions.shape[-1])
    turned_q, turned_k = call(
        "mrotary_embedding",
        q,
        k,
        cos,
        sin,
        positions,
        tuple(_attribute(module, "mrope_section")),
        not getattr(module, "is_neox_style", True),
        bool(getattr(module, "mrope_interleaved", False)),
        layer=type(module).__name__,
    )
    return turned_q.reshape(query.shape), turned_k.reshape(key.shape)


BRIDGES: dict[str, Callable[..., Any]] = {
    "SiluAndMul": silu_and_mul,
    "GeluAndMul": gelu_and_mul,
    "RMSNorm": rms_norm,
    "GemmaRMSNorm": gemma_rms_norm,
    "RotaryEmbedding": rotary_embedding,
    "MRotaryEmbedding": mrotary_embedding,
}
"""Layer classes by name; programs add theirs."""


def find(module: Any) -> str:
    """The layer class that a module's forward is the one of; empty where it is none of those known.

    A subclass with a forward of its own is another operator, whatever it inherits from.
    """
    own = getattr(type(module), "forward_native", None)
    for cls in type(module).__mro__:
        if cls.__name__ in BRIDGES and getattr(cls, "forward_native", None) is own:
            return cls.__name__
    return ""


def routed(module: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """What runs in place of a module's own forward; that itself where the policy leaves its class alone.

    Args:
        module: the layer.
        forward: its own implementation for this platform.
    """
    layer = find(module)
    if not layer:
        return forward
    if policies.current().dispatches(type(module).__name__, layer, LAYER_OPERATORS.get(layer, layer)):
        return forward
    bridge = BRIDGES[layer]

    @functools.wraps(forward)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        try:
            return bridge(module, *args, **kwargs)
        except Unfit:
            return forward(*args, **kwargs)

    return dispatched
