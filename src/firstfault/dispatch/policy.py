"""Which backend an operator shall get, from the environment and a YAML file.

    SGLANG_FL_PER_OP="rms_norm=vendor|flagos;silu_and_mul=reference" SGLANG_FL_OOT_BLACKLIST=RotaryEmbedding …

    prefer: flagos                      # SGLANG_FL_CONFIG=policy.yaml
    op_backends:
      rms_norm: [vendor, flagos]
    oot_blacklist: [RotaryEmbedding]
    flagos_blacklist: [mul, sub]

Names and meanings are those of the FlagOS plugin for SGLang (the README of sglang-plugin-FL): a variable wins over the
file, the file over the defaults. Each variable has a neutral twin, ``FIRSTFAULT_PREFER`` for ``SGLANG_FL_PREFER``,
which wins where both are set. Nothing is in force until one of them is set: a program that asks for nothing gets
what it would get without us.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from firstfault.errors import SettingError, tell
from firstfault.settings import DISPATCH_OWN, DISPATCH_TWINS

PLUGIN = "firstfault"
"""Our name among the plugins of SGLang, as ``SGLANG_PLUGINS`` lists them."""

LAYER_OPERATORS = {
    "SiluAndMul": "silu_and_mul",
    "GeluAndMul": "gelu_and_mul",
    "RMSNorm": "rms_norm",
    "GemmaRMSNorm": "gemma_rms_norm",
    "RotaryEmbedding": "rotary_embedding",
    "MRotaryEmbedding": "mrotary_embedding",
    "TopK": "topk_softmax",
    "UnquantizedFusedMoEMethod": "fused_moe",
}
"""Layer classes, which the dispatch log and the lists name, and the operator that each stands for."""

ALIASES = LAYER_OPERATORS | {"topk": "topk_softmax"}
"""Other names by which an operator may be asked for; the plugin has ``topk``."""

PART_OF = {"fused_add_rms_norm": "rms_norm"}
"""Operators that follow another's order where they have none: a norm that is given a residual is another operator."""


class Kind(str, Enum):
    """What a backend is made of."""

    FLAGOS = "flagos"
    """Triton kernels that run on every chip: FlagGems' own, or ours where it has none."""
    VENDOR = "vendor"
    """What the platform carries: torch's fused operators, sgl_kernel, FlashInfer, vLLM."""
    REFERENCE = "reference"
    """Plain PyTorch, in float32 inside."""


DEFAULT_ORDERS = {
    Kind.FLAGOS: (Kind.FLAGOS, Kind.VENDOR, Kind.REFERENCE),
    Kind.VENDOR: (Kind.VENDOR, Kind.FLAGOS, Kind.REFERENCE),
    Kind.REFERENCE: (Kind.REFERENCE, Kind.FLAGOS, Kind.VENDOR),
}
KIND_FORMS = "flagos, vendor or reference"
BACKEND_FORMS = "flagos, vendor, reference, vendor:NAME or impl:NAME"
_BACKEND = re.compile(r"flagos|vendor|reference|vendor:[\w.-]+|impl:[\w.-]+")
_FILE_FIELDS = (
    "prefer",
    "op_backends",
    "oot_blacklist",
    "flagos_blacklist",
    "strict",
    "deny_vendors",
    "allow_vendors",
)


@dataclass(frozen=True)
class Policy:
    """What is in force in a process.

    Attributes:
        active: whether anything asks for us at all; all else is without effect where this is False.
        fused: whether fused operators are dispatched (the second layer).
        prefer: the kind that comes first.
        per_op: operator to the tokens that it is resolved by, best first: a kind, ``vendor:NAME``, ``impl:NAME``.
        strict: an operator gets what is asked for, or fails: nothing else is tried.
        fused_only: layer classes or operators that alone are dispatched; None for all.
        fused_not: those that are not.
        deny_vendors: vendors that are not taken.
        allow_vendors: vendors that alone are taken; None for all.
        dispatch_log: the file that each resolution is written to; empty for none.
        aten: whether ATen operators are replaced (the first layer).
        aten_set: whose replacements: ``flag_gems``, ``firstfault``, or an entry point; empty for what is there.
        aten_only: ATen operators that alone are replaced; None for all that the set has.
        aten_not: those that are not.
        aten_record: whether replaced calls are logged.
        aten_log: the file for it; empty for FlagGems' own default.
        aten_once: log an operator at its first call only.
    """

    active: bool = False
    fused: bool = True
    prefer: Kind = Kind.FLAGOS
    per_op: tuple[tuple[str, tuple[str, ...]], ...] = ()
    strict: bool = False
    fused_only: frozenset[str] | None = None
    fused_not: frozenset[str] = frozenset()
    deny_vendors: frozenset[str] = frozenset()
    allow_vendors: frozenset[str] | None = None
    dispatch_log: str = ""
    aten: bool = True
    aten_set: str = ""
    aten_only: frozenset[str] | None = None
    aten_not: frozenset[str] = frozenset()
    aten_record: bool = False
    aten_log: str = ""
    aten_once: bool = True

    def order(self, op: str) -> tuple[str, ...]:
        """The tokens that an operator is resolved by, best first.

        In strict mode that is what was asked for and no more; otherwise all other kinds follow.
        """
        listed = dict(self.per_op)
        asked = listed.get(op) or listed.get(PART_OF.get(op, op), (self.prefer.value,))
        if self.strict:
            return asked
        rest = (kind.value for kind in DEFAULT_ORDERS[self.prefer])
        return (*asked, *(kind for kind in rest if kind not in asked))

    def dispatches(self, *names: str) -> str:
        """Why calls of a layer are not dispatched; empty where they are.

        Args:
            names: what the lists may call it: its class, those that it inherits from, its operator.
        """
        if not self.active:
            return "no variable asks for it"
        if not self.fused:
            return "SGLANG_FL_OOT_ENABLED=0"
        if self.fused_only is not None and not self.fused_only.intersection(names):
            return "not in SGLANG_FL_OOT_WHITELIST"
        return "in the blacklist of fused operators" if self.fused_not.intersection(names) else ""

    def vendor_refused(self, names: Iterable[str]) -> str:
        """Why a vendor is not taken; empty where it is.

        Args:
            names: what it goes by, as ``sgl_kernel`` and ``cuda``.
        """
        names = set(names)
        if names & self.deny_vendors:
            return "in SGLANG_FL_DENY_VENDORS"
        if self.allow_vendors is not None and not names & self.allow_vendors:
            return "not in SGLANG_FL_ALLOW_VENDORS"
        return ""

    def replaces(self, names: Iterable[str]) -> str:
        """Why an ATen operator is not replaced; empty where it is.

        Args:
            names: what it goes by, as ``add.Tensor``, ``add`` and the name of the function that replaces it.
        """
        names = set(names)
        if not self.active:
            return "no variable asks for it"
        if not self.aten:
            return "USE_FLAGGEMS=0"
        if self.aten_only is not None and not names & self.aten_only:
            return "not in SGLANG_FL_FLAGOS_WHITELIST"
        return "in the blacklist of ATen operators" if names & self.aten_not else ""


def parse(environ: Mapping[str, str]) -> Policy:
    """Read the policy from the environment, and from the file that it names.

    Raises:
        SettingError: a value is not among the accepted forms, two of them exclude each other, or the file cannot be
            read; the text names the variable.
    """
    if not _asked_for(environ):
        return Policy()
    look = _Lookup(environ)
    policy = _from_file(Policy(active=True), look("SGLANG_FL_CONFIG"))
    return replace(policy, **_fused(look, policy), **_aten(look, policy))


@cache
def current() -> Policy:
    """The policy of this process, read from its environment on first use.

    A bad value is reported on stderr once, and nothing is dispatched or replaced.
    """
    try:
        return parse(os.environ)
    except SettingError as error:
        tell(f"{error}. Operators keep the backends that they have.")
        return Policy()


def variables_set(environ: Mapping[str, str]) -> list[str]:
    """The variables of ours and of the plugin that are set, sorted."""
    known = {*DISPATCH_TWINS, *DISPATCH_TWINS.values(), *DISPATCH_OWN} - {"SGLANG_PLUGINS", "FIRSTFAULT_PLUGINS"}
    return sorted(name for name in known if environ.get(name))


def _asked_for(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for us: by a variable of the policy, and not by leaving us out of the plugins."""
    look = _Lookup(environ)
    if plugins := look("SGLANG_PLUGINS"):
        return PLUGIN in _names(plugins)
    return bool(variables_set(environ))


def twin(name: str) -> str:
    """The neutral name of one of the plugin's variables; itself where it has none."""
    return _TWIN_OF.get(name, name)


_TWIN_OF = {theirs: ours for ours, theirs in DISPATCH_TWINS.items()}


class _Lookup:
    """A variable's value by the plugin's name for it; the neutral twin wins where both are set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __call__(self, name: str) -> str:
        return self._environ.get(self.source(name), "").strip()

    def source(self, name: str) -> str:
        """The name that the value stands under."""
        neutral = twin(name)
        return neutral if neutral in self._environ else name

    def read(self, name: str, convert: Callable[[str, str], Any], otherwise: Any) -> Any:
        """The value, converted; ``otherwise`` where it is not set."""
        value = self(name)
        return convert(self.source(name), value) if value else otherwise


def _fused(look: _Lookup, base: Policy) -> dict[str, Any]:
    only = look.read("SGLANG_FL_OOT_WHITELIST", _name_set, None)
    skipped = look.read("SGLANG_FL_OOT_BLACKLIST", _name_set, None)
    _exclusive(look, "SGLANG_FL_OOT_WHITELIST", only, "SGLANG_FL_OOT_BLACKLIST", skipped)
    return {
        "fused": look.read("SGLANG_FL_OOT_ENABLED", _switch, True),
        "prefer": look.read("SGLANG_FL_PREFER", _kind, base.prefer),
        "per_op": look.read("SGLANG_FL_PER_OP", _per_op, base.per_op),
        "strict": look.read("SGLANG_FL_STRICT", _switch, base.strict),
        "fused_only": only,
        "fused_not": _blacklist(only, skipped, base.fused_not),
        "deny_vendors": look.read("SGLANG_FL_DENY_VENDORS", _name_set, base.deny_vendors),
        "allow_vendors": look.read("SGLANG_FL_ALLOW_VENDORS", _name_set, base.allow_vendors),
        "dispatch_log": look("SGLANG_FL_DISPATCH_LOG"),
    }


def _aten(look: _Lookup, base: Policy) -> dict[str, Any]:
    only = look.read("SGLANG_FL_FLAGOS_WHITELIST", _name_set, None)
    skipped = look.read("SGLANG_FL_FLAGOS_BLACKLIST", _name_set, None)
    _exclusive(look, "SGLANG_FL_FLAGOS_WHITELIST", only, "SGLANG_FL_FLAGOS_BLACKLIST", skipped)
    return {
        "aten": look.read("USE_FLAGGEMS", _switch, True),
        "aten_set": look("FIRSTFAULT_ATEN_SET"),
        "aten_only": only,
        "aten_not": _blacklist(only, skipped, base.aten_not),
        "aten_record": look.read("SGLANG_FLAGGEMS_RECORD", _switch, False),
        "aten_log": look("SGLANG_FLAGGEMS_LOG_PATH"),
        "aten_once": look.read("SGLANG_FLAGGEMS_LOG_ONCE", _switch, True),
    }


def _blacklist(only: frozenset[str] | None, given: frozenset[str] | None, from_file: frozenset[str]) -> frozenset[str]:
    """The blacklist in force: a whitelist of the environment wins over the file's blacklist."""
    if only is not None:
        return frozenset()
    return from_file if given is None else given


def _exclusive(look: _Lookup, first: str, one: object, second: str, other: object) -> None:
    if one is not None and other is not None:
        both = f"{look.source(first)} and {look.source(second)}"
        raise SettingError(f"{both} exclude each other: list what is taken, or what is not")


def _from_file(policy: Policy, path: str) -> Policy:
    """The policy with what a YAML file says."""
    if not path:
        return policy
    fields = _load(path)
    source = f"SGLANG_FL_CONFIG={path!r}"
    unknown = sorted(set(fields) - set(_FILE_FIELDS))
    if unknown:
        raise SettingError(f"{source} has {', '.join(unknown)}; accepted: {', '.join(_FILE_FIELDS)}")
    given = {name: value for name, value in fields.items() if value is not None}
    return replace(
        policy,
        prefer=_kind(f"{source}: prefer", str(given.get("prefer", policy.prefer.value))),
        per_op=_backends(f"{source}: op_backends", given.get("op_backends", {})),
        strict=_switch(f"{source}: strict", str(given.get("strict", "0"))),
        fused_not=_listed(f"{source}: oot_blacklist", given.get("oot_blacklist", ())),
        aten_not=_listed(f"{source}: flagos_blacklist", given.get("flagos_blacklist", ())),
        deny_vendors=_listed(f"{source}: deny_vendors", given.get("deny_vendors", ())),
        allow_vendors=_listed(f"{source}: allow_vendors", given["allow_vendors"]) if "allow_vendors" in given else None,
    )


def _load(path: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"SGLANG_FL_CONFIG={path!r} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"SGLANG_FL_CONFIG={path!r} is not YAML: {' '.join(str(error).split())}") from None
    if found is not None and not isinstance(found, dict):
        raise SettingError(f"SGLANG_FL_CONFIG={path!r} is not a mapping; accepted fields: {', '.join(_FILE_FIELDS)}")
    return {str(name): value for name, value in (found or {}).items()}


def _kind(source: str, value: str) -> Kind:
    try:
        return Kind(value.strip().lower())
    except ValueError:
        raise SettingError(f"{source}={value!r} is not a kind of backend; accepted: {KIND_FORMS}") from None


def _switch(source: str, value: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    try:
        return known[value.strip().lower()]
    except KeyError:
        raise SettingError(f"{source}={value!r} is not a switch; accepted: 0 or 1") from None


def _names(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _name_set(source: str, value: str) -> frozenset[str]:
    return _listed(source, _names(value))


def _listed(source: str, value: Any) -> frozenset[str]:
    words = _names(value) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) and word.strip() for word in words):
        raise SettingError(f"{source} is not a list of names: {value!r}; accepted: names with commas between")
    return frozenset(word.strip() for word in words)


def _per_op(source: str, value: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """``op=a|b;op=c``."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in value.split(";"))):
        name, equals, order = (text.strip() for text in part.partition("="))
        if not equals or not name:
            raise SettingError(f"{source}={value!r} has {part!r}; accepted: operator=backend|backend;…")
        found[name] = [token.strip() for token in order.split("|")]
    return _backends(f"{source}={value!r}", found)


def _backends(source: str, value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Operators and their tokens; a layer class stands for its operator."""
    if not isinstance(value, dict):
        raise SettingError(f"{source} is not a mapping of operators to backends")
    found: dict[str, tuple[str, ...]] = {}
    for name, order in value.items():
        tokens = tuple(order.split("|") if isinstance(order, str) else order if isinstance(order, list) else ())
        wrong = [token for token in tokens if not isinstance(token, str) or not _BACKEND.fullmatch(token.strip())]
        if wrong or not tokens:
            what = repr(wrong[0]) if wrong else "no backend"
            raise SettingError(f"{source} has {what} for {name}; accepted: {BACKEND_FORMS}, with | between")
        found[ALIASES.get(str(name), str(name))] = tuple(token.strip() for token in tokens)
    return tuple(sorted(found.items()))
