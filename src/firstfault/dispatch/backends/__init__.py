"""The backends of this distribution, one module for each library that has implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstfault.dispatch.registry import Registry


def add_all(registry: Registry) -> None:
    """Add every backend, whether or not it is available here."""
    from firstfault.dispatch.backends import flag_gems, flashinfer, reference, sgl_kernel, torch_fused, triton, vllm

    for module in (reference, flag_gems, triton, sgl_kernel, flashinfer, vllm, torch_fused):
        module.add(registry)
