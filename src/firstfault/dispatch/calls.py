"""Calling an operator: the backend that the policy gives it, and another where that fails.

    from firstfault.dispatch.calls import call
    normed = call("rms_norm", x, weight, 1e-6)

Which backend runs is resolved at each call among those that the process has, since not each takes every argument.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from firstfault.dispatch import policy as policies
from firstfault.dispatch.log import DispatchLog
from firstfault.dispatch.policy import LAYER_OPERATORS, Policy
from firstfault.dispatch.registry import Backend, NoBackend, Registry, registry
from firstfault.errors import tell

Runner = Callable[[Backend, tuple[Any, ...], dict[str, Any]], Any]
"""Runs a backend with the arguments of a call and gives its result."""


class Inside(threading.local):
    """What this thread is in the middle of.

    Attributes:
        backend: how many backends of fused operators are running, one in another.
        aten: how many replaced ATen operators are running.
        replaced: their names, of those that run one in another.
        shadow: whether a comparison is under way.
        native: whether ATen operators are to be torch's own, as a reference needs them.
    """

    backend = 0
    aten = 0
    replaced: frozenset[str] = frozenset()
    shadow = False
    native = False


inside = Inside()


def run_plainly(backend: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a backend; ATen operators that it calls are its own business, not the program's."""
    inside.backend += 1
    try:
        return backend.run(*args, **kwargs)
    finally:
        inside.backend -= 1


class Dispatcher:
    """Calls operators by a policy.

    Args:
        registry: the backends that there are.
        policy: which of them to take.
        runner: what runs a backend; a shadow comparison puts itself there.
    """

    def __init__(self, registry: Registry, policy: Policy, runner: Runner = run_plainly) -> None:
        self.registry = registry
        self.policy = policy
        self.runner = runner
        self._log = DispatchLog(policy.dispatch_log)
        self._usable: dict[str, list[Backend]] = {}

    def call(self, op: str, layer: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator.

        Args:
            op: the operator.
            layer: what the dispatch log calls it.
            args, kwargs: with the operator's signature.

        Raises:
            NoBackend: the policy leaves none for these arguments.
            Exception: what the backend raised, and every other one that was tried after it.
        """
        backends = [backend for backend in self._of(op) if not backend.fits(*args, **kwargs)]
        if not backends:
            self.registry.resolve(op, self.policy, args, kwargs)  # which tells the reasons
            raise NoBackend(f"no backend for {op} takes these arguments")
        first: Exception | None = None
        for backend in backends:
            try:
                result = self.runner(backend, args, kwargs)
            except Exception as error:
                if self.policy.strict:
                    raise
                first = first or error
                continue
            if first is not None:
                self._drop(op, backends[: backends.index(backend)], first, backend)
            self._log.resolved(layer, backend)
            return result
        assert first is not None
        raise first

    def _of(self, op: str) -> list[Backend]:
        """The backends of an operator that this process can use, best first."""
        if op not in self._usable:
            ordered = self.registry.ordered(op, self.policy)
            self._usable[op] = [backend for backend in ordered if not backend.refused(self.policy)]
        return self._usable[op]

    def _drop(self, op: str, failed: list[Backend], error: Exception, instead: Backend) -> None:
        """Try those no more that failed where another did not: it is not the arguments."""
        names = ", ".join(backend.name for backend in failed)
        tell(f"{op} falls back to {instead.name}: {names} failed with {type(error).__name__}: {error}")
        self._usable[op] = [backend for backend in self._usable[op] if backend not in failed]


@cache
def dispatcher() -> Dispatcher:
    """The dispatcher of this process, by the policy of its environment."""
    return Dispatcher(registry(), policies.current())


_LAYERS = {op: layer for layer, op in LAYER_OPERATORS.items()}


def call(op: str, *args: Any, layer: str = "", **kwargs: Any) -> Any:
    """Call an operator by the policy of this process.

    Args:
        op: the operator, as ``rms_norm``.
        layer: the layer class that the dispatch log names; the operator's own if left out.
        args, kwargs: with its signature, as ``dispatch.operators`` has it.
    """
    return dispatcher().call(op, layer or _LAYERS.get(op, op), args, kwargs)
