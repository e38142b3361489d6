"""What the policy of this environment would give each operator here, and why.

found = facts()
found.fused[0].op, found.fused[0].backend, found.fused[0].why     # "rms_norm", "flagos", "prefer=flagos"
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from firstfault.dispatch import aten, policy
from firstfault.dispatch.policy import LAYER_OPERATORS, PART_OF, Policy
from firstfault.dispatch.registry import NoBackend, registry
from firstfault.errors import FirstFaultError


@dataclass(frozen=True)
class Fused:
    """One fused operator.

    Attributes:
        op: the operator.
        layer: the layer class that stands for it; empty where there is none.
        backend: the log's name for what it gets, as ``flagos(triton)``; empty where it keeps its own.
        why: what decides it.
        passed_over: backends that would have come first, each with the reason.
    """

    op: str
    layer: str
    backend: str
    why: str
    passed_over: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """The whole answer.

    Attributes:
        active: whether any variable asks for backends.
        variables: those that are set, with their values.
        fused: one for each operator.
        aten_set: whose replacements of ATen operators; empty for none.
        aten_why: why there are none.
        replaced: the ATen operators that would be replaced, with what runs instead.
        skipped: those of the set that would not be, with the reason.
    """

    active: bool
    variables: dict[str, str]
    fused: list[Fused]
    aten_set: str
    aten_why: str
    replaced: dict[str, str]
    skipped: dict[str, str]


def facts() -> Facts:
    """Find out.

    Raises:
        SettingError: a variable has a value that is not among the accepted forms.
    """
    chosen = policy.parse(os.environ)
    names = [*policy.variables_set(os.environ), "SGLANG_PLUGINS", "FIRSTFAULT_PLUGINS"]
    variables = {name: os.environ[name] for name in names if os.environ.get(name)}
    layers = {op: layer for layer, op in LAYER_OPERATORS.items()}
    layers |= {op: layers[part_of] for op, part_of in PART_OF.items()}
    fused = [_fused(op, layers.get(op, ""), chosen) for op in registry().operators()]
    return Facts(chosen.active, variables, fused, *_aten(chosen))


def _fused(op: str, layer: str, chosen: Policy) -> Fused:
    if refused := chosen.dispatches(layer, op):
        return Fused(op, layer, "", refused)
    try:
        found = registry().resolve(op, chosen)
    except NoBackend as error:
        return Fused(op, layer, "", str(error))
    asked = dict(chosen.per_op)
    listed = op if op in asked else PART_OF.get(op, op)
    why = f"{listed}={'|'.join(asked[listed])}" if listed in asked else f"prefer={chosen.prefer.value}"
    name = f"{found.backend.kind.value}({found.backend.name})"
    return Fused(op, layer, name, why, dict(found.passed_over))


def _aten(chosen: Policy) -> tuple[str, str, dict[str, str], dict[str, str]]:
    """Set, why there is none, replaced and skipped operators."""
    if not chosen.active:
        return "", "no variable asks for it", {}, {}
    if not chosen.aten:
        return "", "USE_FLAGGEMS=0", {}, {}
    try:
        found = aten.operator_set(chosen)
    except FirstFaultError as error:
        return "", str(error), {}, {}
    if found is None:
        return "", aten.why_no_flag_gems(), {}, {}
    replaced, skipped = {}, {}
    for op, function in found.items:
        if reason := chosen.replaces(aten.names(op, function)):
            skipped[op] = reason
        else:
            replaced[op] = aten.described(function, found.home)
    return found.name, "", replaced, skipped
