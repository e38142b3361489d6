"""What boundaries are attached to without a change to the program: one file a library.

    attach(("default", "-nn_module"))        at the start of a process under ``firstfault run``
    detach()

A target is a module, or any object, with

    DISTRIBUTION    the package that it is about, by which its version is found
    TRIED           the versions of it that it is known to work with, as they begin; others are a note
    REQUIRES        the modules that it patches: ``install`` is called with each once the program has imported it
    OPT_IN          whether it attaches only where it is named
    install(module)
    uninstall()     puts every attribute back

and a docstring that says in its first line what it records. Third parties add theirs by the entry-point group
``firstfault.targets``. None imports torch by itself: ``firstfault targets`` lists them where there may be none.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from firstfault import peers
from firstfault.capture import coverage, imports
from firstfault.errors import SettingError, tell

GROUP = "firstfault.targets"
DEFAULT = "default"
BUILT_IN = (
    "aten",
    "collectives",
    "diffusers",
    "flag_gems",
    "flashinfer",
    "nn_module",
    "sglang",
    "torch_library",
    "triton",
    "vllm",
)


class Target(Protocol):
    """What the module's docstring says."""

    DISTRIBUTION: str
    TRIED: tuple[str, ...]
    REQUIRES: tuple[str, ...]
    OPT_IN: bool

    def install(self, module: ModuleType) -> None:
        """Attach to one of the required modules."""

    def uninstall(self) -> None:
        """Put every attribute back."""


_attached: dict[str, Any] = {}
_callbacks: set[Callable[[ModuleType], None]] = set()


def names() -> list[str]:
    """The names of all targets, built-in ones and those of third parties."""
    return sorted({*BUILT_IN, *peers.entry_points(GROUP)})


def load(name: str) -> Any:
    """The target of that name, a built-in one if there are two.

    Raises:
        SettingError: there is none.
    """
    if name in BUILT_IN:
        return importlib.import_module(f"{__name__}.{name}")
    found = peers.entry_points(GROUP).get(name)
    if found is None:
        raise SettingError(f"no such target: {name!r}; there are {DEFAULT}, {', '.join(names())}")
    return found.load()


def chosen(wanted: tuple[str, ...]) -> list[str]:
    """The names of the targets that a list like ``("default", "aten", "-triton")`` asks for.

    Raises:
        SettingError: there is none of a name.
    """
    taken: dict[str, None] = {}
    for word in wanted:
        name = word.removeprefix("-")
        if name == DEFAULT:
            meant = [name for name in names() if not getattr(load(name), "OPT_IN", False)]
        else:
            load(name)
            meant = [name]
        for name in meant:
            taken.pop(name, None)
            if not word.startswith("-"):
                taken[name] = None
    return list(taken)


class Facts(NamedTuple):
    """What there is to say about a target where nothing is recorded."""

    name: str
    records: str
    library: str
    version: str
    attaches: str


def facts(name: str) -> Facts:
    """What a target records, and whether it would attach in a program that this Python runs."""
    try:
        target = load(name)
        version = peers.version(target.DISTRIBUTION)
        if not version:
            attaches = f"no: {target.DISTRIBUTION} is not installed"
        else:
            attaches = "where it is named" if target.OPT_IN else "by default"
            attaches += "" if _is_tried(target, version) else ", though this version has not been tried"
        return Facts(
            name, (target.__doc__ or "").partition("\n")[0].replace("``", ""), target.DISTRIBUTION, version, attaches
        )
    except Exception as error:  # a target of a third party may be broken in any way
        return Facts(name, "", "", "", f"no: {type(error).__name__}: {error}")


def attach(wanted: tuple[str, ...]) -> None:
    """Attach the targets that are asked for, each as soon as the program has imported what it requires.

    Raises:
        SettingError: there is no target of a name.
    """
    for name in chosen(wanted):
        if name not in _attached:
            _attach(name)


def detach() -> None:
    """Put back every attribute that a target has replaced, and wait for no library any more."""
    imports.forget(_callbacks)
    _callbacks.clear()
    while _attached:
        name, target = _attached.popitem()
        try:
            target.uninstall()
        except Exception as error:
            tell(f"target {name} could not be uninstalled: {type(error).__name__}: {error}")
        coverage.targets.pop(name, None)


def _attach(name: str) -> None:
    try:
        target = _attached[name] = load(name)
        call = functools.partial(_install, name, target)
        failed = functools.partial(_failed, name)
        _callbacks.add(call)
        for required in target.REQUIRES:
            imports.when_imported(required, call, failed)
    except Exception as error:  # a target of a third party may be broken in any way
        _failed(name, error)


def _install(name: str, target: Any, module: ModuleType) -> None:
    """Called when an import has come to its end, which it also does when this goes wrong."""
    try:
        target.install(module)
        version = peers.version(target.DISTRIBUTION)
        coverage.attached(name, target.DISTRIBUTION, version)
        if not _is_tried(target, version):
            coverage.lacks(name, f"version {version} has not been tried with it")
        _tell()
    except Exception as error:
        _failed(name, error)


def _is_tried(target: Any, version: str) -> bool:
    return not version or any(f"{version}.".startswith(f"{tried}.") for tried in target.TRIED)


def _failed(name: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"
    coverage.lacks(name, reason)
    tell(f"target {name} is not attached, what it would record is not seen: {reason}")
    with suppress(Exception):
        _tell()


def _tell() -> None:
    from firstfault.capture import recorder

    recorder.tell_targets()
