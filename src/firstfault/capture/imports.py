"""Calling back when a module's import has come to its end, with nothing of ours left to be seen on the module.

    when_imported("torch", install, failed)

Nothing is imported that the program does not import. Every Python process under ``firstfault run`` comes through
here, and most never import what is waited for: ``wrapt``, which does the same, takes 40 ms of each to import.

Python marks an import as under way in the module's specification and takes the mark off at its end, whatever loads
it; that is what is seen here. A loader cannot tell: some load many modules, and some have been called already when
a library imports torch, and only then do we know that this library is waited for.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, TypeAlias

    Waiter: TypeAlias = "tuple[Callable[[ModuleType], None], Callable[[Exception], None]]"


def when_imported(name: str, call: Callable[[ModuleType], None], failed: Callable[[Exception], None]) -> None:
    """Call ``call`` with the module of that name: now if it is imported already, else once it is.

    Args:
        name: the module's full name.
        call: must not raise.
        failed: called where the end of the import cannot be seen, as the specification is of an unknown kind.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        call(module)
        return
    is_first = name not in _waiting.names
    _waiting.names.setdefault(name, []).append((call, failed))
    if _waiting not in sys.meta_path:
        sys.meta_path.insert(0, _waiting)
    if spec is not None and is_first:
        _waiting.see_end_of(spec)


def forget(calls: set[Callable[[ModuleType], None]]) -> None:
    """Wait no longer for what these were to be called for."""
    for name, waiting in list(_waiting.names.items()):
        _waiting.names[name] = [pair for pair in waiting if pair[0] not in calls]
        if not _waiting.names[name]:
            _waiting.done(name)


class _Waiting:
    """Finds modules as the finders behind it do, and sees their imports come to their ends."""

    def __init__(self) -> None:
        self.names: dict[str, list[Waiter]] = {}
        self._asking: set[str] = set()
        """While one thread looks for a module, Python lets no other look for any."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the others find, as a specification that says when its module is imported."""
        if name not in self.names or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._asking.discard(name)
        if spec is not None and spec.loader is not None:
            self.see_end_of(spec)
        return spec

    def see_end_of(self, spec: ModuleSpec) -> None:
        """Call back when Python says of a module that it is imported."""
        try:
            spec.__class__ = _seen(type(spec), self)
        except Exception as error:  # a specification of another kind than any that Python has
            for _, failed in self.done(spec.name):
                failed(error)

    def ends(self, name: str) -> None:
        """The import of a module ends; where it has failed, there may be another."""
        module = sys.modules.get(name)
        while module is not None and (waited := self.done(name)):
            for call, _ in waited:
                call(module)  # which may wait for this very module

    def done(self, name: str) -> list[Waiter]:
        """Wait no longer for a module; who did is given back."""
        waited = self.names.pop(name, [])
        if not self.names and self in sys.meta_path:
            sys.meta_path.remove(self)
        return waited


def _seen(kind: type[ModuleSpec], ours: _Waiting) -> type[ModuleSpec]:
    """A specification of that kind, until Python takes the mark off that its module's import is under way."""

    def is_initializing(spec: ModuleSpec) -> bool:
        return bool(vars(spec).get("_initializing", False))

    def initialize(spec: ModuleSpec, under_way: bool) -> None:
        if under_way:
            vars(spec)["_initializing"] = True
            return
        try:
            ours.ends(spec.name)
        finally:
            spec.__class__ = kind
            setattr(spec, "_initializing", False)  # another like us may see it too

    return type(kind.__name__, (kind,), {"_initializing": property(is_initializing, initialize)})


def _found_by_others(ours: _Waiting, name: str, path: Any, target: ModuleType | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is not ours and find_spec is not None:
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


_waiting = _Waiting()
