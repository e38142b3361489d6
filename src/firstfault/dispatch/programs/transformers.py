"""Models of transformers: their RMS norms, gated activations and rotary embeddings.

Each model names its own copies, ``Qwen3RMSNorm`` or ``LlamaMLP``; they are known by what they are made of when a model
has been built, and its layers get another ``forward``. The norms of transformers round before they multiply by the
weight, which ours do after: in half precision that is a difference of one unit in the last place.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from firstfault.dispatch import policy as policies
from firstfault.dispatch.calls import call
from firstfault.dispatch.policy import LAYER_OPERATORS

MODULE = "transformers.modeling_utils"
_ROTATE = "apply_rotary_pos_emb"
_PARAMETERS = ("q", "k", "cos", "sin")


def install(module: ModuleType) -> None:
    """Route the layers of each model that is built from now on."""
    model = module.PreTrainedModel
    original = model.post_init

    @functools.wraps(original)
    def post_init(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        route(self)
        return result

    model.post_init = post_init


def route(model: torch.nn.Module) -> None:
    """Give the layers of a model that the policy dispatches their operators."""
    for layer in model.modules():
        forward = _forward_of(layer)
        if forward is not None:
            layer.forward = forward
    for name in {type(layer).__module__ for layer in model.modules()}:
        _route_rotation(sys.modules[name])


def _forward_of(layer: torch.nn.Module) -> Callable[..., Any] | None:
    """Another forward for a layer; None where it keeps its own."""
    name = type(layer).__name__
    if name.endswith("RMSNorm") and isinstance(getattr(layer, "weight", None), torch.Tensor):
        return _norm(layer, name)
    parts = [getattr(layer, part, None) for part in ("gate_proj", "up_proj", "down_proj")]
    if name.endswith("MLP") and all(isinstance(part, torch.nn.Module) for part in parts):
        return _gated(layer)
    return None


def _dispatched(layer: str, own_name: str) -> bool:
    return not policies.current().dispatches(own_name, layer, LAYER_OPERATORS[layer])


def _norm(layer: Any, name: str) -> Callable[..., Any] | None:
    is_gemma = name.startswith("Gemma")
    kind = "GemmaRMSNorm" if is_gemma else "RMSNorm"
    eps = getattr(layer, "eps" if is_gemma else "variance_epsilon", None)
    if eps is None or layer.weight.ndim != 1 or not _dispatched(kind, name):
        return None
    own = layer.forward

    def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or torch.compiler.is_compiling():
            return own(hidden_states, *args, **kwargs)
        return call(LAYER_OPERATORS[kind], hidden_states, layer.weight.detach(), eps, layer=kind)

    return forward


def _gated(layer: Any) -> Callable[..., Any] | None:
    if not isinstance(layer.act_fn, torch.nn.SiLU) and type(layer.act_fn).__name__ != "SiLUActivation":
        return None
    if not _dispatched("SiluAndMul", type(layer).__name__):
        return None
    own = layer.forward

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or torch.compiler.is_compiling():
            return own(x, *args, **kwargs)
        both = torch.cat((layer.gate_proj(x), layer.up_proj(x)), dim=-1)
        return layer.down_proj(call("silu_and_mul", both, layer="SiluAndMul"))

    return forward


def _route_rotation(module: ModuleType) -> None:
    """Dispatch the function by which the attention layers of a model's module rotate query and key."""
    own = vars(module).get(_ROTATE)
    if not inspect.isfunction(own) or getattr(own, "firstfault_dispatched", False):
        return
    if tuple(inspect.signature(own).parameters)[:4] != _PARAMETERS or not _dispatched("RotaryEmbedding", _ROTATE):
        return

    @functools.wraps(own)
    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        plain = not args and not kwargs and cos.ndim == 3 and cos.shape[0] in (1, q.shape[0]) and q.ndim == 4
        if not plain or cos.shape[-1] > q.shape[-1] or torch.compiler.is_compiling():
            return own(q, k, cos, sin, *args, **kwargs)
        return _rotated(q, k, cos, sin)

    rotate.firstfault_dispatched = True  # type: ignore[attr-defined]
    setattr(module, _ROTATE, rotate)


def _rotated(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key ``[batch, heads, tokens, size]`` rotated by tables that have a row for each token."""
    batch, _, tokens, _ = q.shape
    half = cos.shape[-1] // 2
    tables = [table[..., :half].expand(batch, -1, -1).reshape(-1, half) for table in (cos, sin)]
    positions = torch.arange(batch * tokens, device=q.device)
    flat = [x.transpose(1, 2).reshape(batch * tokens, x.shape[1], x.shape[-1]) for x in (q, k)]
    turned = call("rotary_embedding", *flat, *tables, positions, layer="RotaryEmbedding")
    q, k = (x.view(batch, tokens, *x.shape[1:]).transpose(1, 2) for x in turned)
    return q, k
