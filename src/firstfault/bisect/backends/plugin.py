"""The variables that the FlagOS plugins of SGLang and vLLM share, but for their prefix.

    variables(FUSED_ONLY)  →  {"USE_FLAGGEMS": "0"}

Which variable does what is told in the plugins' own READMEs. Nothing is imported from a plugin: where it is not
installed, its variables change nothing, and the bisection says that nothing was switched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from firstfault.bisect.configuration import Configuration, Universe
from firstfault.dispatch import policy
from firstfault.read.files import is_regular, read_whole

USE_FLAGGEMS = "USE_FLAGGEMS"
DISPATCH_LOG, ATEN_LOG = "dispatch.log", "gems_aten.txt"
LARGEST_LOG = 256 * 2**20
_DISPATCHED = re.compile(r"\[OOT-DISPATCH\]\s+(\w+)\s*(?:→|->)")
_REPLACED = re.compile(r"^\[\w+\] +(?:\w+\.)*ops\.(?:\w+\.)*(\w+):", re.MULTILINE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
CLASSES = {
    "RMSNorm": ("rms_norm", "fused_add_rms_norm"),
    "GemmaRMSNorm": ("gemma_rms_norm",),
    "MRotaryEmbedding": ("mrotary_embedding",),
    "TopK": ("topk",),
    "FusedMoE": ("fused_moe",),
    "UnquantizedFusedMoEMethod": ("fused_moe",),
}
"""Classes of layers whose operators are not their names in small letters."""


@dataclass(frozen=True)
class Plugin:
    """One plugin.

    Attributes:
        name: as it is named on the command line.
        prefix: of its variables.
        none: the variables that keep it from being loaded.
        records: the variables that make it write its logs, given their folder.
        port: where its engine serves by default.
        hook: whether it is firstfault's own, which every Python process of the command has to find when it starts.
    """

    name: str
    prefix: str
    none: Mapping[str, str]
    records: Callable[[Path], dict[str, str]]
    port: int
    hook: bool = False

    def variables(self, chosen: Configuration, universe: Universe, given: Mapping[str, str]) -> dict[str, str | None]:
        """What a configuration changes in an environment.

        Args:
            chosen: what is to be on.
            universe: all operators, as far as they are known.
            given: the user's environment; what it prefers is what an operator that is on runs.
        """
        if not chosen.plugin:
            twins = {_twin(name): None for name in self.none if _twin(name) in given}
            return {**self.none, **twins, **({chosen.without: None} if chosen.without else {})}
        changed = {**self._fused(chosen, universe, given), **self._aten(chosen, given)}
        set_here = sorted(_twin(name) for name, value in changed.items() if value is not None)
        return {**changed, **{name: None for name in set_here if name in given}}  # which would win

    def operators(self, folder: Path) -> Universe:
        """What a run has switched, from the logs that it has left in a folder."""
        fused = [name for found in _found(folder / DISPATCH_LOG, _DISPATCHED) for name in _operators(found)]
        return Universe(tuple(dict.fromkeys(fused)), tuple(_found(folder / ATEN_LOG, _REPLACED)))

    def _fused(self, chosen: Configuration, universe: Universe, given: Mapping[str, str]) -> dict[str, str | None]:
        if not chosen.layer:
            return {f"{self.prefix}OOT_ENABLED": "0"}
        if chosen.fused is None:
            return _on(f"{self.prefix}OOT_ENABLED", given)
        per_op, prefer = f"{self.prefix}PER_OP", f"{self.prefix}PREFER"
        usual, theirs = self._preferred(given)
        off = [name for name in universe.fused if name not in chosen.fused]
        if len(off) < len(chosen.fused):
            return {per_op: _joined({**theirs, **dict.fromkeys(off, "reference")})}
        on = {name: theirs.get(name, usual) for name in universe.fused if name in chosen.fused}
        listed = {per_op: _joined(on)} if on else {per_op: None} if per_op in given else {}
        return {prefer: "reference", **listed}

    def _preferred(self, given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """What the user has operators run: the usual kind of backend, and the order of those that have one.

        Raises:
            SettingError: the policy file cannot be read.
        """
        usual, per_op = (_given(f"{self.prefix}{name}", given) for name in ("PREFER", "PER_OP"))
        theirs = _per_op(per_op)
        if path := _given(f"{self.prefix}CONFIG", given):
            filed = policy.parse({"SGLANG_FL_CONFIG": path})
            usual = usual or filed.prefer.value
            theirs = theirs or {name: "|".join(order) for name, order in filed.per_op}
        return usual or "flagos", theirs

    def _aten(self, chosen: Configuration, given: Mapping[str, str]) -> dict[str, str | None]:
        if chosen.aten is None:
            return _on(USE_FLAGGEMS, given)
        if not chosen.aten:
            return {USE_FLAGGEMS: "0"}
        listed = {f"{self.prefix}FLAGOS_WHITELIST": ",".join(sorted(chosen.aten))}
        blacklist = f"{self.prefix}FLAGOS_BLACKLIST"  # which excludes a whitelist
        names = (blacklist, _twin(blacklist))
        return {**_on(USE_FLAGGEMS, given), **listed, **{name: None for name in names if name in given}}


def _on(switch: str, given: Mapping[str, str]) -> dict[str, str | None]:
    """A layer switched on: as the user has it, else explicitly, for those that do nothing unless they are asked."""
    return {} if switch in given or _twin(switch) in given else {switch: "1"}


def _given(name: str, given: Mapping[str, str]) -> str:
    """A variable's value, by its neutral name where that is set."""
    return given.get(_twin(name), given.get(name, "")).strip()


def _twin(name: str) -> str:
    """The neutral name of a variable, which wins over the plugin's where both are set."""
    return "FIRSTFAULT_" + re.sub(r"^(SGLANG|VLLM)_(FL_)?", "", name)


def _found(path: Path, pattern: re.Pattern[str]) -> Iterable[str]:
    """The first group of every match, each once."""
    if not is_regular(path):
        return ()
    return dict.fromkeys(pattern.findall(read_whole(path, LARGEST_LOG).decode("utf-8", "replace")))


def _operators(name: str) -> tuple[str, ...]:
    """The operators of a class of layers, or the operator itself."""
    return CLASSES.get(name) or (_CAMEL.sub("_", name).lower(),)


def _joined(choices: Mapping[str, str]) -> str:
    return ";".join(f"{name}={order}" for name, order in choices.items())


def _per_op(text: str) -> dict[str, str]:
    """``silu_and_mul=flagos|vendor;rms_norm=vendor`` by operator."""
    pairs = (item.partition("=") for item in text.split(";"))
    return {name.strip(): order.strip() for name, sign, order in pairs if sign}
