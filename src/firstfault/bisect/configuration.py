"""Which operators a run has on.

    Configuration(fused=frozenset({"rms_norm"}), aten=frozenset())  →  "fused rms_norm; aten none"

There are two layers, as in the FlagOS plugins: fused operators of the engine, and PyTorch's ATen operators. A fused
operator that is off runs its reference; with the whole layer off, the engine's own code runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

FUSED, ATEN = "fused", "aten"


class Operator(NamedTuple):
    """One operator that can be switched."""

    layer: str
    name: str

    def __str__(self) -> str:
        return f"{self.layer} {self.name}"


@dataclass(frozen=True)
class Universe:
    """All operators that a run with everything on has switched, by layer, in the order in which it came to them."""

    fused: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Both layers, the fused ones first."""
        return (*(Operator(FUSED, name) for name in self.fused), *(Operator(ATEN, name) for name in self.aten))


@dataclass(frozen=True)
class Configuration:
    """What is on in a run; None stands for all operators of a layer, whatever they are.

    Attributes:
        fused: the fused operators that are on; the others run their reference.
        aten: the ATen operators that are on; the others are PyTorch's own.
        layer: whether the layer of fused operators is there at all.
        plugin: whether the plugin is loaded; nothing is on if not.
        without: a variable of the user's environment that is taken away, if any.
    """

    fused: frozenset[str] | None = None
    aten: frozenset[str] | None = None
    layer: bool = True
    plugin: bool = True
    without: str = ""

    @property
    def key(self) -> str:
        """The configuration in words, equal for equal ones."""
        if not self.plugin:
            return f"all off; without {self.without}" if self.without else "all off"
        if not self.layer:
            return f"fused layer off; aten {_listed(self.aten)}"
        return f"fused {_listed(self.fused)}; aten {_listed(self.aten)}"

    def has(self, wanted: Iterable[Operator]) -> bool:
        """Whether all of these operators are on."""
        return all(self._has(operator) for operator in wanted)

    def _has(self, operator: Operator) -> bool:
        if not self.plugin or (operator.layer == FUSED and not self.layer):
            return False
        chosen = self.fused if operator.layer == FUSED else self.aten
        return chosen is None or operator.name in chosen


NONE: frozenset[str] = frozenset()
ALL_OFF = Configuration(NONE, NONE, layer=False, plugin=False)
PLUGIN_ONLY = Configuration(NONE, NONE, layer=False)
REFERENCE = Configuration(NONE, NONE)
ALL_ON = Configuration()
FUSED_ONLY = Configuration(None, NONE)
ATEN_ONLY = Configuration(NONE, None, layer=False)


def fused_subset(names: Collection[str], universe: Universe) -> Configuration:
    """Only these fused operators, and no ATen operator; the whole layer is written as one."""
    return Configuration(_whole(names, universe.fused), NONE)


def aten_subset(names: Collection[str], universe: Universe) -> Configuration:
    """Only these ATen operators, and no layer of fused ones."""
    return Configuration(NONE, _whole(names, universe.aten), layer=False)


def subset(operators: Iterable[Operator], universe: Universe) -> Configuration:
    """These operators of both layers; a layer of which none is known is left as it is."""
    chosen = set(operators)
    fused = {operator.name for operator in chosen if operator.layer == FUSED}
    aten = {operator.name for operator in chosen if operator.layer == ATEN}
    return Configuration(_whole(fused, universe.fused), _whole(aten, universe.aten))


def _whole(names: Collection[str], layer: Collection[str]) -> frozenset[str] | None:
    return None if set(names) == set(layer) else frozenset(names)


def _listed(names: frozenset[str] | None) -> str:
    if names is None:
        return "all"
    return ",".join(sorted(names)) or "none"
