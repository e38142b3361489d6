"""What people see when operator backends or a server with them do not come up, explained from the real environment.

    for answer in answers(machine): answer.symptom, answer.cause, answer.next

Each symptom is one module, whose docstring says what it is, why it matters, on what it is judged, and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine


@dataclass(frozen=True)
class Answer:
    """One symptom, as far as this environment explains it.

    Attributes:
        symptom: what is seen.
        cause: what here causes it; empty where nothing here does.
        next: what to do; where nothing here causes it, what to look at then.
    """

    symptom: str
    cause: str
    next: str


Check = Callable[["Machine"], Answer]


def answers(machine: Machine) -> list[Answer]:
    """Every symptom, those with a cause here first."""
    from firstfault.diagnose.symptoms import (
        empty_aten_log,
        empty_dispatch_log,
        forward_cuda,
        import_sgl_kernel,
        lost_precision,
        mistyped_variables,
        out_of_memory_at_start,
        stuck_at_start,
    )

    checks: tuple[Check, ...] = (
        mistyped_variables.check,
        empty_dispatch_log.check,
        empty_aten_log.check,
        forward_cuda.check,
        import_sgl_kernel.check,
        stuck_at_start.check,
        out_of_memory_at_start.check,
        lost_precision.check,
    )
    return sorted((check(machine) for check in checks), key=lambda answer: not answer.cause)
