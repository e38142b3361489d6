"""What the user of a bisection has said.

Options(tolerance=1e-4, rate=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from firstfault.bisect.configuration import Universe


@dataclass(frozen=True)
class Options:
    """What the user has said.

    Attributes:
        expected: an observation that is known to be right, if there is one.
        tolerance: the effect that right implementations may show; None for what the probe takes.
        rate: the lowest rate at which a fault is to be found.
        universe: the operators to search; those of a layer that is empty are read from the logs of a run.
        precision_variables: variables of the environment that change how precisely everything computes.
    """

    expected: Any = None
    tolerance: float | None = None
    rate: float = 0.3
    universe: Universe = field(default_factory=Universe)
    precision_variables: tuple[str, ...] = ()
