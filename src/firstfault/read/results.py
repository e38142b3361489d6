"""Results that are unlike all earlier ones of their operator, noticed as the calls come back.

Notice(call=<norm, call 812>, label="return", what=JUMP, before=3.4, calls=811)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from firstfault.read.formats.values import elements
from firstfault.read.tensors import Labelled, largest_magnitude, not_finite
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.read.calls import Call

ENOUGH_CALLS = 3
"""Earlier results that must agree before another is remarkable."""
JUMP = 1e3
WORTH_A_JUMP = 1e3
"""Magnitude below which results that grew are not worth a word."""
GROWN = 10
"""How many times larger than in all earlier calls inputs are that have grown: a jump that was given is not its own."""
MOST_RESULTS = 4000
MOST_NOTICES = 16


class What(str, Enum):
    """What is unlike earlier results."""

    JUMP = "jump"
    CONSTANT = "constant"


class Notice(NamedTuple):
    """One result: of which call, what of it, and the largest magnitude in so many earlier calls."""

    call: Call
    label: str
    tensor: schema.Tensor
    what: What
    before: float
    calls: int


@dataclass(slots=True)
class _Usual:
    """What the results in one place were like."""

    count: int = 0
    magnitude: float = 0.0
    constant: bool = False
    given: float = 0.0
    """The largest magnitude among inputs."""


class Results:
    """The results of one process, learned call by call, and the first that stood out."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._usual: dict[tuple[str, str, int], _Usual] = {}

    def take(self, call: Call, outputs: list[Labelled]) -> None:
        """Take in what a call gave."""
        for label, tensor in outputs:
            if tensor.mean is None or "float" not in tensor.dtype or not_finite(tensor):
                continue
            key = (call.op, label, len(tensor.shape))
            usual = self._usual.get(key)
            if usual is None:
                if len(self._usual) >= MOST_RESULTS:
                    continue
                usual = self._usual[key] = _Usual()
            if usual.count >= ENOUGH_CALLS and len(self.notices) < MOST_NOTICES:
                self._compare(call, label, tensor, usual)
            usual.count += 1
            usual.magnitude = max(usual.magnitude, largest_magnitude(tensor))
            usual.constant = usual.constant or _constant(tensor)
            usual.given = max(usual.given, _largest(call))

    def _compare(self, call: Call, label: str, tensor: schema.Tensor, usual: _Usual) -> None:
        size = largest_magnitude(tensor)
        given = _measured(call)
        if not given:
            return
        if size >= max(WORTH_A_JUMP, JUMP * usual.magnitude) and _largest(call) <= GROWN * usual.given:
            self.notices.append(Notice(call, label, tensor, What.JUMP, usual.magnitude, usual.count))
        elif _constant(tensor) and not usual.constant and not any(map(_constant, given)):
            self.notices.append(Notice(call, label, tensor, What.CONSTANT, usual.magnitude, usual.count))


def _measured(call: Call) -> list[schema.Tensor]:
    return [tensor for _, tensor in call.given if tensor.mean is not None and "float" in tensor.dtype]


def _largest(call: Call) -> float:
    return max(map(largest_magnitude, _measured(call)), default=0.0)


def _constant(tensor: schema.Tensor) -> bool:
    """Whether all of several values are the same."""
    return tensor.min is not None and tensor.min == tensor.max and elements(tensor.shape) > 1
