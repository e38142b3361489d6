"""The backends that there are for each operator, and which one a policy takes.

    found = registry.resolve("rms_norm", policy, tensors)
    found.backend.name      # "flagos"
    found.passed_over       # [("vendor.sgl_kernel", "sgl_kernel is not installed")]

Backends come from ``dispatch.backends`` and from the entry points of the group ``firstfault.backends``, each of which
is a function that is given the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from firstfault import peers
from firstfault.dispatch.policy import Kind, Policy
from firstfault.errors import FirstFaultError, tell

ENTRY_POINTS = "firstfault.backends"


class NoBackend(FirstFaultError):
    """The policy leaves an operator without a backend."""


def always(*_: Any) -> str:
    """Nothing stands against it."""
    return ""


@dataclass(frozen=True)
class Backend:
    """One implementation of an operator.

    Attributes:
        op: the operator, as ``rms_norm``.
        kind: what it is made of.
        name: what the dispatch log calls it and ``impl:NAME`` takes: ``flagos``, ``reference``, ``vendor.torch``.
        run: the implementation, with the signature of the operator.
        vendor: the names that it goes by in lists of vendors; empty unless it is a vendor's.
        available: why it cannot be used in this process; empty where it can.
        fits: why it cannot take these arguments, given as the operator is; empty where it can.
        priority: among several that a token matches, the greatest comes first.
    """

    op: str
    kind: Kind
    name: str
    run: Callable[..., Any]
    vendor: tuple[str, ...] = ()
    available: Callable[[], str] = always
    fits: Callable[..., str] = always
    priority: int = 0

    def matches(self, token: str) -> bool:
        """Whether a token of a policy means it."""
        if token.startswith("impl:"):
            return self.name == token.removeprefix("impl:")
        if token.startswith("vendor:"):
            return self.kind is Kind.VENDOR and token.removeprefix("vendor:") in self.vendor
        return self.kind.value == token

    def refused(self, policy: Policy) -> str:
        """Why a policy or this process cannot have it; empty where it can."""
        refused = policy.vendor_refused(self.vendor) if self.kind is Kind.VENDOR else ""
        return refused or self.available()


@dataclass
class Resolution:
    """Which backend an operator gets.

    Attributes:
        op: the operator.
        backend: the one.
        passed_over: names of those that would have come before it, each with the reason.
        others: those that come after it, best first.
    """

    op: str
    backend: Backend
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    others: list[Backend] = field(default_factory=list)


class Registry:
    """Backends by operator."""

    def __init__(self) -> None:
        self._backends: dict[str, list[Backend]] = {}

    def add(self, backend: Backend) -> None:
        """Add a backend.

        Raises:
            FirstFaultError: there is one of its name for the operator.
        """
        known = self._backends.setdefault(backend.op, [])
        if any(other.name == backend.name for other in known):
            raise FirstFaultError(f"there are two backends {backend.name} of {backend.op}; give one another name")
        known.append(backend)

    def operators(self) -> list[str]:
        """The operators that there are backends of."""
        return sorted(self._backends)

    def backends(self, op: str) -> list[Backend]:
        """All backends of an operator, available or not."""
        return list(self._backends.get(op, ()))

    def reference(self, op: str) -> Backend | None:
        """The reference of an operator, which others are compared with."""
        return next((backend for backend in self.backends(op) if backend.kind is Kind.REFERENCE), None)

    def ordered(self, op: str, policy: Policy) -> list[Backend]:
        """The backends that a policy takes into account, best first."""
        found: dict[str, Backend] = {}
        for token in policy.order(op):
            matching = [backend for backend in self.backends(op) if backend.matches(token)]
            for backend in sorted(matching, key=lambda one: -one.priority):
                found.setdefault(backend.name, backend)
        return list(found.values())

    def resolve(self, op: str, policy: Policy, args: tuple[Any, ...] | None = None, kwargs: Any = None) -> Resolution:
        """Which backend an operator gets.

        Args:
            op: the operator.
            policy: what is in force.
            args, kwargs: of the call; left out where it is asked what a process would get.

        Raises:
            NoBackend: none can be had; the text has the reason for each.
        """
        passed_over: list[tuple[str, str]] = []
        ordered = self.ordered(op, policy)
        for index, backend in enumerate(ordered):
            reason = backend.refused(policy)
            if not reason and args is not None:
                reason = backend.fits(*args, **(kwargs or {}))
            if not reason:
                return Resolution(op, backend, passed_over, ordered[index + 1 :])
            passed_over.append((backend.name, reason))
        raise NoBackend(_without(op, policy, passed_over))


def _without(op: str, policy: Policy, passed_over: Iterable[tuple[str, str]]) -> str:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over) or "no backend is of that kind"
    asked = "|".join(policy.order(op))
    strict = ", and SGLANG_FL_STRICT=1 lets nothing else be tried" if policy.strict else ""
    return f"no backend for {op}={asked} ({reasons}){strict}"


@cache
def registry() -> Registry:
    """The backends of this process: ours, and those that installed distributions add.

    One that cannot be loaded is told of on stderr, and left out.
    """
    from firstfault.dispatch import backends

    found = Registry()
    backends.add_all(found)
    for name, point in sorted(peers.entry_points(ENTRY_POINTS).items()):
        try:
            point.load()(found)
        except Exception as error:
            tell(f"the backends of {name} are not used: {type(error).__name__}: {error}")
    return found
