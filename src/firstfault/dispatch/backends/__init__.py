"""The backends of this distribution, one module for each library that has implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.dispatch.policy import Kind

if TYPE_CHECKING:
    from firstfault.dispatch.registry import Registry


def add_all(registry: Registry) -> None:
    """Add every backend, whether or not it is available here."""
    from firstfault.dispatch.backends import reference
    from firstfault.dispatch.operators import OPERATORS
    from firstfault.dispatch.registry import Backend

    for op in OPERATORS:
        registry.add(Backend(op, Kind.REFERENCE, "reference", getattr(reference, op)))
