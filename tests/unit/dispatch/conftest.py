"""Triton's kernels run interpreted here: it is decided when a kernel's module is imported, by this variable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_policy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without a policy, whatever was asked of it before."""
    from firstfault.dispatch import calls, custom_op, layers, policy, program
    from firstfault.settings import DISPATCH_OWN, DISPATCH_TWINS

    for name in (*DISPATCH_TWINS, *DISPATCH_TWINS.values(), *DISPATCH_OWN):
        monkeypatch.delenv(name, raising=False)
    caches = (policy.current, calls.dispatcher, program.start, custom_op._dispatcher_of)
    for cache in caches:
        cache.cache_clear()
    bridges = dict(layers.BRIDGES)
    yield
    from firstfault.capture import multi_platform

    multi_platform.route_by(None)
    layers.BRIDGES.clear()
    layers.BRIDGES.update(bridges)
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
