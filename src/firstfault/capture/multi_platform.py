"""``CustomOp``: a module with one forward a platform, whose forward is a boundary.

    class RMSNorm(CustomOp):
        def forward_native(self, x): ...
        def forward_cuda(self, x): ...

A call is recorded under the class's own name, ``RMSNorm.forward``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeAlias

import torch

from firstfault.capture import boundary

Router: TypeAlias = "Callable[[CustomOp, Callable[..., Any]], Callable[..., Any]]"
"""Gives what runs in place of the forward that a module got from its platform; that itself, to leave it alone."""


class CustomOp(torch.nn.Module):
    """Base class for operators with an implementation for each platform.

    A platform without one of its own falls back: HIP and MUSA to CUDA's, all others to the native one.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if boundary.enabled():
            forward = vars(cls).get("forward") or _inherited(cls)
            name = f"{cls.__name__}.forward"
            cls.forward = boundary.debug_kernel_api(forward, op_name=name)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        forward = self.dispatch_forward()
        self._forward_method = forward if _router is None else _router(self, forward)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the implementation of this platform."""
        return self._forward_method(*args, **kwargs)

    def dispatch_forward(self) -> Callable[..., Any]:
        """The implementation that this platform gets; called once, when the module is made."""
        forward: Callable[..., Any] = getattr(self, f"forward_{platform()}")
        return forward

    def forward_native(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation in plain PyTorch, which every platform can fall back to."""
        raise NotImplementedError(f"{type(self).__name__} has no forward_native")

    def forward_cuda(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for NVIDIA GPUs."""
        return self.forward_native(*args, **kwargs)

    def forward_hip(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for AMD GPUs."""
        return self.forward_cuda(*args, **kwargs)

    def forward_musa(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for Moore Threads GPUs."""
        return self.forward_cuda(*args, **kwargs)

    def forward_cpu(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for CPUs."""
        return self.forward_native(*args, **kwargs)

    def forward_xpu(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for Intel GPUs."""
        return self.forward_native(*args, **kwargs)

    def forward_npu(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for Ascend NPUs."""
        return self.forward_native(*args, **kwargs)

    def forward_tpu(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for TPUs."""
        return self.forward_native(*args, **kwargs)

    def forward_oot(self, *args: Any, **kwargs: Any) -> Any:
        """The implementation for platforms outside this list."""
        return self.forward_native(*args, **kwargs)


_router: Router | None = None


def route_by(router: Router | None) -> None:
    """Let operator backends be chosen for modules that are made from now on, by what lies above this room."""
    global _router
    _router = router


def _inherited(cls: type[CustomOp]) -> Callable[..., Any]:
    """A ``forward`` for a class without one, so that it records under its own name; it runs the one it inherits.

    Which that is is looked up at each call, as it is without us: the class may have several bases, and a base may
    be patched later.
    """

    def forward(self: CustomOp, *args: Any, **kwargs: Any) -> Any:
        found = super(cls, self).forward
        if not isinstance(found, MethodType):
            return found(*args, **kwargs)
        return boundary.function_of(found.__func__)(self, *args, **kwargs)  # past its boundary: this is the same call

    return functools.update_wrapper(forward, cls.forward, updated=())


def platform() -> str:
    """The platform that torch runs on here: ``cuda``, ``hip``, ``musa``, ``xpu``, ``npu`` or ``cpu``."""
    if torch.cuda.is_available():
        return "hip" if torch.version.hip else "cuda"
    return next((name for name in ("musa", "xpu", "npu") if _available(name)), "cpu")


def _available(name: str) -> bool:
    backend = getattr(torch, name, None)
    return backend is not None and bool(backend.is_available())
