"""One rule a file: ``ff201_shape_disagreement.py`` holds FF201, and its docstring is its published page.

A rule is a function ``check(suspect)`` that yields what it finds in one call. It reads nothing but the call
and what earlier calls of the same operator looked like.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType

from firstfault.diagnose.finding import Confidence, Finding
from firstfault.read import earlier
from firstfault.read.calls import Call
from firstfault.read.tensors import Labelled, tensors

RULES = (
    "ff201_shape_disagreement",
    "ff202_dtype_drift",
    "ff203_device_mix",
    "ff204_not_contiguous",
    "ff301_not_finite",
    "ff302_magnitude",
    "ff401_giant_tensor",
)


@dataclass(frozen=True)
class Suspect:
    """A call to look at, and what earlier calls of its operator looked like."""

    call: Call
    known: earlier.Earlier

    @cached_property
    def tensors(self) -> list[Labelled]:
        """The tensors among its inputs, by argument."""
        return [found for label, value in self.call.inputs() for found in tensors(label, value)]

    @cached_property
    def alike(self) -> earlier.Variant | None:
        """The earlier calls with tensors of the same ranks in the same places, if any came back."""
        return self.known.of(self.call.record)

    @cached_property
    def other_uses(self) -> list[earlier.Variant]:
        """The earlier calls of the operator that had other tensors."""
        return [variant for variant in self.known.variants(self.call.op) if variant is not self.alike]

    def earlier(self, label: str) -> earlier.Layouts | None:
        """What that argument looked like in the earlier calls that are like this one."""
        return self.alike.places.get(label) if self.alike is not None else None

    @property
    def count(self) -> int:
        """How many earlier calls like this one came back."""
        return self.alike.count if self.alike is not None else 0

    @property
    def in_earlier_calls(self) -> str:
        """``in 7 earlier calls``, for the text of a finding."""
        return "in 1 earlier call" if self.count == 1 else f"in {self.count} earlier calls"


def check_all(suspect: Suspect) -> list[Finding]:
    """What every rule finds in a call."""
    return [finding for name in RULES for finding in load(name).check(suspect)]


def load(name: str) -> ModuleType:
    """The module of one rule."""
    return import_module(f"{__name__}.{name}")


def finding(
    module: str, suspect: Suspect, confidence: Confidence, arguments: list[str], text: str, next_step: str
) -> Finding:
    """A finding of the rule in ``module``, which gives it code and title by its name."""
    code, _, slug = module.rpartition(".")[2].partition("_")
    call = suspect.call
    return Finding(code.upper(), slug.replace("_", " "), confidence, call.n, call.op, arguments, text, next_step)
