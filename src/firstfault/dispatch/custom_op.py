"""``CustomOp`` subclasses by the policy: as the operator that their class is known for, or by their own forwards.

    class RMSNorm(CustomOp): …          # → rms_norm, with all its backends
    class TopKGate(CustomOp): …         # → top_k_gate: reference is forward_native, vendor its platform's forward

A third party's backends of ``top_k_gate`` are called with the module before the arguments.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from firstfault.capture import multi_platform
from firstfault.capture.multi_platform import CustomOp
from firstfault.dispatch import calls, layers
from firstfault.dispatch import policy as policies
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend, Registry, registry

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def route() -> None:
    """Dispatch each ``CustomOp`` that is made from now on, as far as the policy asks for it."""
    multi_platform.route_by(routed)


def operator_name(cls: type) -> str:
    """What policies call a class's operator: ``SiluAndMul`` is ``silu_and_mul``."""
    return _CAPITAL.sub("_", cls.__name__).lower()


def routed(module: CustomOp, forward: Callable[..., Any]) -> Callable[..., Any]:
    """What runs in place of the forward that the platform gives a module."""
    if layers.find(module):
        return layers.routed(module, forward)
    cls = type(module)
    name = operator_name(cls)
    if policies.current().dispatches(cls.__name__, name):
        return forward
    dispatcher = calls.dispatcher()

    @functools.wraps(forward)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        own = _dispatcher_of(cls, getattr(forward, "__name__", ""), dispatcher.policy)  # type: ignore[arg-type]
        own.runner = dispatcher.runner
        return own.call(name, cls.__name__, (module, *args), kwargs)

    return dispatched


@functools.cache
def _dispatcher_of(cls: Any, platform_forward: str, policy: policies.Policy) -> calls.Dispatcher:
    """What calls a class's own implementations, and those that others add for it."""
    found = Registry()
    name = operator_name(cls)
    for backend in registry().backends(name):
        found.add(backend)
    native = cls.forward_native is not CustomOp.forward_native
    if native:
        found.add(Backend(name, Kind.REFERENCE, "reference", cls.forward_native))
    if platform_forward and (not native or platform_forward != "forward_native"):
        platform = platform_forward.removeprefix("forward_")
        if getattr(cls, platform_forward) is not getattr(CustomOp, platform_forward, None):
            found.add(Backend(name, Kind.VENDOR, f"vendor.{platform}", getattr(cls, platform_forward), (platform,)))
    return calls.Dispatcher(found, policy)
