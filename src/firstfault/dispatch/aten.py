"""Replacing ATen operators: another library's kernels under torch's own names, for all or some of them.

    replacer = Replacer(policy)
    replacer.install()          # torch.nn.functional.silu now runs flag_gems.ops.silu.silu
    replacer.skipped            # {"mul.Tensor": "in the blacklist of ATen operators"}

What replaces them comes in sets: FlagGems' where it is installed and has a GPU, our own small one for CPUs, or one that
a distribution offers under the entry points ``firstfault.aten``. Torch's own kernels are kept at hand, for references.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from firstfault import peers
from firstfault.dispatch import ops
from firstfault.dispatch.aten_log import AtenLog, Named, default_path
from firstfault.dispatch.backends import flag_gems
from firstfault.dispatch.calls import inside
from firstfault.dispatch.policy import Policy
from firstfault.errors import SettingError, tell

ENTRY_POINTS = "firstfault.aten"
FLAG_GEMS, OWN = "flag_gems", "firstfault"


@dataclass(frozen=True)
class OperatorSet:
    """Replacements that belong together.

    Attributes:
        name: what ``FIRSTFAULT_ATEN_SET`` calls it.
        key: torch's dispatch key that they are for, as ``CUDA``.
        items: ATen names with overloads, and the functions.
        home: the package of functions whose modules are named without it.
    """

    name: str
    key: str
    items: tuple[tuple[str, Callable[..., Any]], ...]
    home: str = ""


@dataclass(frozen=True)
class Replacement:
    """One operator that is replaced.

    Attributes:
        named: by what, under which name.
        run: what runs instead.
        native: torch's own kernel, which takes a set of dispatch keys first; None where it has none for this key.
        overload: the operator.
        key: the dispatch key that it is replaced for.
    """

    named: Named
    run: Callable[..., Any]
    native: Callable[..., Any] | None
    overload: Any
    key: str


Watcher = Callable[[Replacement, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Runs a replacement for a call of the program's own; given its dispatch keys and arguments."""


def run_replacement(replacement: Replacement, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What runs where nobody watches."""
    return replacement.run(*args, **kwargs)


class Replacer:
    """The replaced operators of this process.

    Args:
        policy: which of them.
        watcher: what runs the program's own calls; a shadow comparison puts itself there.

    Attributes:
        replaced: the operators in force.
        skipped: operators of the set that are not, each with the reason.
    """

    def __init__(self, policy: Policy, watcher: Watcher = run_replacement) -> None:
        self.replaced: list[Replacement] = []
        self.skipped: dict[str, str] = {}
        self.watcher = watcher
        self._policy = policy
        self._library: torch.library.Library | None = None
        path = policy.aten_log or (default_path() if policy.aten_record else "")
        self.log = AtenLog(path if policy.aten_record else "", once=policy.aten_once)

    def install(self) -> None:
        """Put the replacements in force.

        Raises:
            SettingError: there is no set of the name that the policy has, or it cannot be used here.
        """
        if self._library is not None or not self._policy.active or not self._policy.aten:
            return
        found = operator_set(self._policy)
        if found is None:
            return
        self._library = torch.library.Library("aten", "IMPL")
        for op, function in found.items:
            if reason := self._policy.replaces(names(op, function)) or self._replace(op, function, found):
                self.skipped[op] = reason
        self._tell_unknown(found.items)

    def uninstall(self) -> None:
        """Give torch its own kernels back."""
        if self._library is not None:
            self._library._destroy()
        self._library = None
        self.replaced.clear()
        self.log.close()

    def _replace(self, op: str, function: Callable[..., Any], found: OperatorSet) -> str:
        """Replace one operator; why it cannot be, empty where it is."""
        try:
            overload = _overload(op)
            native = _native(op, found.key)
            named = Named(op, described(function, found.home))
            replacement = Replacement(named, function, native, overload, found.key)
            assert self._library is not None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, which says once that a kernel is replaced
                self._library.impl(op, self._called(replacement), found.key, with_keyset=True)
        except (RuntimeError, AttributeError) as error:
            return str(error).splitlines()[0]
        self.replaced.append(replacement)
        return ""

    def _called(self, replacement: Replacement) -> Callable[..., Any]:
        """What torch calls in the operator's place.

        Where what replaces an operator calls that operator, be it through another one, that is torch's own: it would
        call itself without end.
        """
        native, run, op = replacement.native, replacement.run, replacement.named.op

        def called(keys: Any, *args: Any, **kwargs: Any) -> Any:
            outer = inside.replaced
            if (inside.native or op in outer) and native is not None:
                return native(keys, *as_tensors(replacement.overload, args), **kwargs)
            if op in outer:
                raise RuntimeError(_calls_itself(replacement))
            inside.replaced = outer | {op}
            try:
                return run(*args, **kwargs) if inside.aten or inside.backend else watched(keys, args, kwargs)
            finally:
                inside.replaced = outer

        def watched(keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            inside.aten += 1
            try:
                self.log.called(replacement.named)
                return self.watcher(replacement, keys, args, kwargs)
            finally:
                inside.aten -= 1

        return called

    def _tell_unknown(self, items: Iterable[tuple[str, Callable[..., Any]]]) -> None:
        known = {name for item in items for name in names(*item)}
        asked = (self._policy.aten_only or frozenset()) | self._policy.aten_not
        if unknown := sorted(asked - known):
            tell(f"no ATen operator is replaced under the name of {', '.join(unknown)}")


def _calls_itself(replacement: Replacement) -> str:
    op, by = replacement.named.op, described(replacement.run)
    return f"{by} calls {op}, which it replaces, and torch has no kernel of its own for {replacement.key}"


def operator_set(policy: Policy) -> OperatorSet | None:
    """The set that a policy asks for; None where it asks for none by name and FlagGems is not there.

    Raises:
        SettingError: there is none of its name, or it cannot be used here.
    """
    if not policy.aten_set:
        return None if flag_gems.available() else _flag_gems()
    points = peers.entry_points(ENTRY_POINTS)
    known: dict[str, Callable[[], OperatorSet]] = {FLAG_GEMS: _flag_gems, OWN: _own}
    known |= {name: lambda point=point: point.load()() for name, point in points.items()}  # type: ignore[misc]
    if policy.aten_set not in known:
        there_are = ", ".join(sorted(known))
        raise SettingError(f"FIRSTFAULT_ATEN_SET={policy.aten_set!r} is no set of operators; there are {there_are}")
    try:
        return known[policy.aten_set]()
    except Exception as error:
        raise SettingError(f"FIRSTFAULT_ATEN_SET={policy.aten_set!r} cannot be used: {error}") from error


def _own() -> OperatorSet:
    return OperatorSet(OWN, "CPU", tuple((op, _natively(run)) for op, run in ops.OPERATORS))


def _natively(run: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement whose own operators are torch's."""

    @functools.wraps(run)
    def natively(*args: Any, **kwargs: Any) -> Any:
        outer, inside.native = inside.native, True
        try:
            return run(*args, **kwargs)
        finally:
            inside.native = outer

    return natively


def _flag_gems() -> OperatorSet:
    """What ``flag_gems.enable()`` registers, but for what its vendor's settings leave out."""
    if reason := flag_gems.available():
        raise RuntimeError(reason)
    gems = importlib.import_module("flag_gems")
    detector = _flag_gems_device()
    left_out = set(gems.config.aten_patch_list)
    unused = (
        set() if detector.vendor_name == "nvidia" else set(gems.runtime.backend.get_unused_ops(detector.vendor_name))
    )
    items = []
    for op, function, *condition in gems._FULL_CONFIG:
        if op not in left_out and function.__name__ not in unused and all(holds() for holds in condition):
            items.append((op, function))
    home = f"{FLAG_GEMS}.runtime.backend._{detector.vendor_name}"
    return OperatorSet(FLAG_GEMS, detector.dispatch_key, tuple(items), home)


def _flag_gems_device() -> Any:
    """What FlagGems knows of the device; its home has moved after 5.0.2."""
    try:
        module = importlib.import_module("flag_gems.runtime.backend.device")
    except ImportError:
        module = importlib.import_module("flag_gems.runtime.backend.device_finder")
    return module.DeviceDetector()


def why_no_flag_gems() -> str:
    """Why the set that is taken by default is not there."""
    return flag_gems.available()


def described(function: Callable[..., Any], home: str = "") -> str:
    """A function by its full name, as ``flag_gems.ops.silu.silu``.

    Args:
        function: it.
        home: what a module lies in that was loaded by its last names alone, as FlagGems does with what it has for one
            vendor or one generation of GPUs.
    """
    module = function.__module__ or ""
    within = f"{home}." if home and module.partition(".")[0] != home.partition(".")[0] else ""
    return f"{within}{module}.{getattr(function, '__name__', repr(function))}"


def names(op: str, function: Callable[..., Any]) -> set[str]:
    """What lists may call an operator: with and without its overload, or by the function that replaces it."""
    return {op, op.partition(".")[0], getattr(function, "__name__", op)}


def _overload(op: str) -> Any:
    name, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def as_tensors(overload: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as torch's own kernels take them: no plain number where a tensor is declared.

    Python gives ``x + 2.5`` as that. A tensor of no dimensions takes part in the result's dtype as a number does, as
    long as it is of no higher kind than it.
    """
    if not any(type(value) in _NUMBERS for value in args):
        return args
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    real = torch.float64 if any(tensor.is_floating_point() for tensor in tensors) else torch.get_default_dtype()
    dtypes = {bool: torch.bool, int: torch.int64, float: real, complex: torch.complex64}
    declared = overload._schema.arguments
    return tuple(
        torch.tensor(value, dtype=dtypes[type(value)])
        if type(value) in _NUMBERS and index < len(declared) and declared[index].type.kind() == "TensorType"
        else value
        for index, value in enumerate(args)
    )


_NUMBERS = (bool, int, float, complex)


def _native(op: str, key: str) -> Callable[..., Any] | None:
    """Torch's own kernel of an operator, before it is replaced."""
    try:
        return torch.library.get_kernel(f"aten::{op}", key).call_boxed
    except (RuntimeError, AttributeError):  # it has none for this key, or torch is older than 2.9
        return None
