"""SGLang: its layer classes by the policy, as one of its general plugins.

SGLang resolves a layer's forward in one method, which its own registry of hooks patches: when a layer is made, in
``MultiPlatformOp.dispatch_forward`` (as 0.5.11), or at its first call, in ``BaseFusedOp._resolve_forward_method`` (as
0.5.23). A layer that SGLang has pinned to one of its forwards never comes there, and keeps it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from firstfault.dispatch import layers
from firstfault.dispatch import policy as policies
from firstfault.dispatch.calls import call
from firstfault.dispatch.layers import Unfit, refuse

RESOLVERS = (
    ("sglang.kernels.fused_op", "BaseFusedOp", "_resolve_forward_method"),
    ("sglang.srt.layers.utils.multi_platform", "MultiPlatformOp", "dispatch_forward"),
)


def resolver() -> str:
    """The dotted name of the method that resolves a layer's forward in this SGLang.

    Raises:
        ImportError: it has none of those known.
    """
    for module, cls, method in RESOLVERS:
        try:
            owner = getattr(importlib.import_module(module), cls)
        except (ImportError, AttributeError):
            continue
        if hasattr(owner, method):
            return f"{module}.{cls}.{method}"
    raise ImportError("this version of SGLang resolves its layers' forwards in none of the ways known")


ROUTERS = ("fused_topk", "fused_topk_native")
"""The names under which ``sglang.srt.layers.moe.topk`` calls what a plain softmax router ends in."""
_PLAIN = (None, False, 0, "softmax")
"""Values of a router's further arguments that ask for nothing more."""


def install() -> None:
    """Hook resolver and routers; SGLang applies the hooks when all plugins have been loaded."""
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    layers.BRIDGES["UnquantizedFusedMoEMethod"] = fused_moe

    def resolve(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        return layers.routed(layer, original(layer, *args, **kwargs))

    registry.HookRegistry.register(resolver(), resolve, registry.HookType.AROUND)
    if not policies.current().dispatches("TopK", "topk_softmax"):
        for name in ROUTERS:
            target = f"sglang.srt.layers.moe.topk.{name}"
            registry.HookRegistry.register(target, _route, registry.HookType.AROUND)


def _route(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A router's weights and experts; its own, where it is more than a softmax and its largest."""
    asked = dict(zip(("hidden_states", "gating_output", "topk", "renormalize"), args, strict=False)) | kwargs
    plain = {"hidden_states", "gating_output", "topk", "renormalize"}
    further = [value for name, value in asked.items() if name not in plain]
    more = any(isinstance(value, torch.Tensor) or value not in _PLAIN for value in further)
    if len(args) > len(plain) or more or not plain <= set(asked) or torch.compiler.is_compiling():
        return original(*args, **kwargs)
    return call("topk_softmax", asked["gating_output"], asked["topk"], bool(asked["renormalize"]), layer="TopK")


def fused_moe(method: Any, layer: Any, dispatch_output: Any, **given: Any) -> Any:
    """``UnquantizedFusedMoEMethod.forward(layer, dispatch_output)`` of experts with gated SiLU and nothing more."""
    config = method.moe_runner_config
    refuse(method, "with_bias", "use_triton_kernels", "w13_swiglu_interleaved", **given)
    refuse(config, "apply_router_weight_on_input", "no_combine", "num_fused_shared_experts")
    refuse(config, "gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit", "routed_scaling_factor")
    refuse(layer, "use_intel_amx_backend")
    if config.activation != "silu" or not getattr(config, "is_gated", True) or getattr(layer, "moe_ep_size", 1) > 1:
        raise Unfit("experts of another kind")
    hidden, routed = dispatch_output.hidden_states, dispatch_output.topk_output
    w1, w2 = layer.w13_weight, layer.w2_weight
    if (
        not hasattr(routed, "topk_weights")
        or w1.ndim != 3
        or w1.shape[2] != hidden.shape[-1]
        or w2.shape[1] != hidden.shape[-1]
    ):
        raise Unfit("weights laid out for other kernels")
    output = call("fused_moe", hidden, w1.detach(), w2.detach(), routed.topk_weights, routed.topk_ids)
    combine = importlib.import_module("sglang.srt.layers.moe.token_dispatcher").StandardCombineInput
    return combine(hidden_states=output)
