"""Calling back when a module's import has come to its end, with nothing of ours left to be seen on the module.

    when_imported("torch", install)

Nothing is imported that the program does not import. Every Python process under ``firstfault run`` comes through
here, and most never import what is waited for: ``wrapt``, which does the same, takes 40 ms of each to import.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def when_imported(name: str, call: Callable[[ModuleType], None], failed: Callable[[Exception], None]) -> None:
    """Call ``call`` with the module of that name: now if it is imported already, else once it is.

    Args:
        name: the module's full name.
        call: must not raise.
        failed: called where the end of the import cannot be seen, as with a loader of an unknown kind.
    """
    module = sys.modules.get(name)
    if module is not None and (name in _waiting.run or not _is_under_way(module)):
        call(module)
        return
    _waiting.names.setdefault(name, []).append((call, failed))
    if _waiting not in sys.meta_path:
        sys.meta_path.insert(0, _waiting)


def forget(calls: set[Callable[[ModuleType], None]]) -> None:
    """Wait no longer for what these were to be called for."""
    for name, waiting in list(_waiting.names.items()):
        _waiting.names[name] = [pair for pair in waiting if pair[0] not in calls]
        if not _waiting.names[name]:
            _waiting.done(name)


def _is_under_way(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Waiting:
    """Finds modules as the finders behind it do, and sees their imports come to their ends."""

    def __init__(self) -> None:
        self.names: dict[str, list[tuple[Callable[[ModuleType], None], Callable[[Exception], None]]]] = {}
        self.run: set[str] = set()
        """Modules whose code has run to its end, though Python says later that they are imported."""
        self._asking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the others find, with a loader that says when it is done."""
        if name not in self.names or name in self._asking:
            return None
        self._asking.add(name)
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._asking.discard(name)
        if spec is not None and spec.loader is not None:
            try:
                self._see_end_of(name, spec.loader)
            except Exception as error:  # a loader of another kind than any that Python has
                for _, failed in self.done(name):
                    failed(error)
        return spec

    def done(self, name: str) -> list[tuple[Callable[[ModuleType], None], Callable[[Exception], None]]]:
        """Wait no longer for a module; who did is given back."""
        waited = self.names.pop(name, [])
        if not self.names and self in sys.meta_path:
            sys.meta_path.remove(self)
        return waited

    def _see_end_of(self, name: str, loader: Loader) -> None:
        """Call back when ``loader`` has run the module; then there is nothing of ours left to be seen on it."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            vars(loader).pop("exec_module", None)
            self.run.add(name)
            for call, _ in self.done(name):
                call(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


def _found_by_others(ours: _Waiting, name: str, path: Any, target: ModuleType | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is not ours and find_spec is not None:
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


_waiting = _Waiting()
