"""One rule a file: ``ff912_prefill_dominated.py`` holds FF912, and its docstring is its published page.

A rule is a function ``check(scene)`` that yields what stands out. It reads nothing but the scene: what a bundle holds
of one server over one window.
"""

from __future__ import annotations

import math
from importlib import import_module
from types import ModuleType

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal, ranked

RULES = (
    "ff901_startup_failure",
    "ff902_worker_died",
    "ff903_stall",
    "ff904_only_alive",
    "ff905_out_of_memory",
    "ff906_request_too_large",
    "ff907_preemption_storm",
    "ff908_over_admission",
    "ff909_capacity_pressure",
    "ff910_queue_growth",
    "ff911_transfer_stuck",
    "ff912_prefill_dominated",
    "ff913_decode_dominated",
    "ff914_cache_collapse",
    "ff915_speculation_ineffective",
    "ff916_rank_imbalance",
    "ff917_config_drift",
    "ff918_client_waiting",
    "ff919_server_down",
    "ff920_idle_snapshot",
    "ff921_collective_failed",
)


def load(name: str) -> ModuleType:
    """The module of one rule."""
    return import_module(f"{__name__}.{name}")


def check_all(scene: Scene) -> list[Signal]:
    """What every rule sees in a scene, the weightiest first."""
    return ranked([found for name in RULES for found in load(name).check(scene)])


def signal(
    module: str,
    problem: Problem,
    confidence: Confidence,
    text: str,
    *,
    guess: str = "",
    evidence: list[str] | None = None,
    rules_out: list[str] | None = None,
    settles: str = "",
    background: bool = False,
) -> Signal:
    """A signal of the rule in ``module``, which gives it code and title by its name."""
    code, _, title = module.rpartition(".")[2].partition("_")
    return Signal(
        code.upper(),
        title.replace("_", " "),
        problem,
        confidence,
        text,
        guess,
        evidence or [],
        rules_out or [],
        settles,
        background,
    )


def shown(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals, ``n/a`` where there is none."""
    return f"{value:.{digits}f}" if value is not None and math.isfinite(value) else "n/a"


def whole(value: float | None) -> str:
    """A number without decimals, ``n/a`` where there is none."""
    return shown(value, 0)
