"""Attaching one target for as long as a test lasts, and what its owners' attributes are before and after."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from firstfault.capture import imports, targets
from firstfault.record import schema
from tests.unit.recording import Recording


def attributes(*owners: Any) -> list[tuple[Any, dict[str, Any]]]:
    """What modules and classes have themselves."""
    return [(owner, dict(vars(owner))) for owner in owners]


def changed(before: list[tuple[Any, dict[str, Any]]]) -> list[str]:
    """The attributes that are no longer the very objects that they were, or are new, or gone."""
    found = []
    for owner, old in before:
        new = dict(vars(owner))
        found += [f"{owner.__name__}.{name}" for name in {*old, *new} if old.get(name, new) is not new.get(name, old)]
    return sorted(name for name in found if not name.endswith(".__slotnames__"))  # which copyreg keeps on classes


@contextmanager
def attached(target: Any, *modules: ModuleType) -> Iterator[None]:
    """Install a target into modules that are imported already."""
    try:
        for module in modules:
            target.install(module)
        yield
    finally:
        target.uninstall()


@contextmanager
def attached_by_name(*names: str) -> Iterator[None]:
    """Attach targets as ``firstfault run`` does: each when what it requires is imported."""
    try:
        targets.attach(names)
        yield
    finally:
        targets.detach()
        assert not imports._waiting.names


@contextmanager
def stand_in(folder: Path, files: dict[str, str]) -> Iterator[None]:
    """A library that cannot run here: modules of its names and shapes, importable for as long as the block lasts.

    Where the real one is installed, it is set aside until then.

    Args:
        folder: an empty one, to write them to.
        files: code by path.
    """
    tops = {path.partition("/")[0].removesuffix(".py") for path in files}
    for path, code in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(textwrap.dedent(code))
        for parent in (folder / path).relative_to(folder).parents:
            if parent != Path():
                (folder / parent / "__init__.py").touch()
    real = _taken(tops)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _taken(tops)
        sys.modules.update(real)


def _taken(tops: set[str]) -> dict[str, ModuleType]:
    """Take the modules of some libraries away from those that are imported."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in tops}


def calls(recording: Recording, target: str | None = None) -> list[schema.Call]:
    """The calls, of one target where one is named."""
    return [call for call in recording.of(schema.Call) if target in (None, call.target)]


def names(recording: Recording, target: str | None = None) -> list[str]:
    """The operators in the order of their calls."""
    return [call.op for call in calls(recording, target)]


def mutated(recording: Recording) -> list[list[str]]:
    """What the calls that came back have changed, in the order in which they did."""
    return [record.mutated for record in recording.of(schema.Return)]
