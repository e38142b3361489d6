"""What a run with everything off gives, how much that varies, and from where on a difference is one.

    measure(trials, options)  →  Baseline(runs=2, spread=0.0, tolerance=1e-5, threshold=1e-5, …)

Two runs that are the same bit for bit settle the spread: it is none. Otherwise there are eight, and the spread is what
99 % of such runs stay below, with a confidence of 95 % (a one-sided normal tolerance limit on each run's median
distance to the others), and below which all of them lie.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from firstfault.bisect.configuration import ALL_OFF, REFERENCE
from firstfault.bisect.distributions import most_rate, tolerance_limit
from firstfault.bisect.judge import ERROR
from firstfault.bisect.options import Options
from firstfault.bisect.probes.probe import NoAnswer
from firstfault.bisect.trials import Trial, Trials

FEW, MANY = 2, 8
NATURAL = 3.0
"""How many times the distance between two right implementations, reference and engine, is no difference yet."""


class Bad(Exception):
    """The run with everything off, or that of the reference, is itself wrong."""


@dataclass(frozen=True)
class Baseline:
    """Everything off.

    Attributes:
        runs: how many.
        outliers: how many of them went wrong.
        spread: what their distances stay below; 0 where they are the same bit for bit.
        natural: how far the reference backends are from it.
        tolerance: up to which effect right implementations may be apart.
        threshold: the effect beyond which a run is an outlier.
        false_rate: how often a run without any fault is one.
    """

    runs: int
    outliers: int
    spread: float
    natural: float
    tolerance: float
    threshold: float
    false_rate: float


def measure(trials: Trials, options: Options) -> Baseline:
    """Run everything off, and the reference backends once.

    Raises:
        Bad: what should be right is wrong.
        OutOfRuns: there are too few runs.
    """
    right, wrong = _observed(trials)
    if not right:
        raise Bad(_explained(trials, options, f"with everything off it is wrong: {wrong[0]}"))
    trials.baseline = [seen for _, seen in right]
    allowed = trials.probe.tolerance(right[0][1])
    known = options.tolerance if options.tolerance is not None else allowed.least
    spread = _spread(trials)
    _as_expected(trials, options, max(known, spread))
    for at, (trial, _) in enumerate(right):
        trial.effect = _to_others(trials, at)
    natural = _reference(trials, max(spread, known if options.tolerance is not None else allowed.most), spread)
    tolerance = options.tolerance
    if tolerance is None:
        tolerance = max(allowed.least, min(NATURAL * natural, allowed.most))
    runs = len(right) + len(wrong)
    noisy = most_rate(len(wrong), runs) if wrong else ERROR if spread > 0 else 0.0
    return Baseline(runs, len(wrong), spread, natural, tolerance, max(tolerance, spread), noisy)


def _observed(trials: Trials) -> tuple[list[tuple[Trial, Any]], list[str]]:
    """The runs with something right, and why the others have nothing; more of them where two are not the same."""
    right: list[tuple[Trial, Any]] = []
    wrong: list[str] = []
    while len(right) + len(wrong) < FEW or (len(right) + len(wrong) < MANY and _differ(trials, right, wrong)):
        trial = trials.next(ALL_OFF, "baseline")
        try:
            seen = trials.observe(trial)
        except NoAnswer as error:
            wrong.append(str(error))
            continue
        if fault := trials.probe.wrong(seen):
            wrong.append(fault)
            trial.effect = math.inf
        else:
            right.append((trial, seen))
    return right, wrong


def _differ(trials: Trials, right: Sequence[tuple[Trial, Any]], wrong: Sequence[str]) -> bool:
    """Whether the first runs are not the same."""
    if not right or wrong:
        return bool(right)
    return any(trials.probe.effect(seen, right[0][1]) > 0 for _, seen in right[1:])


def _spread(trials: Trials) -> float:
    distances = [_to_others(trials, at) for at in range(len(trials.baseline))]
    if max(distances) == 0:
        return 0.0
    if not all(map(math.isfinite, distances)):
        return math.inf
    if len(distances) < MANY:
        return max(distances)  # the others went wrong, so that nothing can be told apart anyway
    return max(*distances, tolerance_limit(distances, ERROR))


def _to_others(trials: Trials, at: int) -> float:
    """The median distance of one run of the baseline to the others, 0 where there are none."""
    seen = trials.baseline[at]
    others = [*trials.baseline[:at], *trials.baseline[at + 1 :]]
    return statistics.median(trials.probe.effect(seen, other) for other in others) if others else 0.0


def _as_expected(trials: Trials, options: Options, allowed: float) -> None:
    if options.expected is None:
        return
    distance = statistics.median(trials.probe.effect(seen, options.expected) for seen in trials.baseline)
    if distance > allowed:
        why = f"with everything off it is {distance:.2g} {trials.probe.UNIT} from what is expected"
        raise Bad(_explained(trials, options, why))


def _explained(trials: Trials, options: Options, why: str) -> str:
    """Why, and which variable of the environment makes it so, if one does: each is taken away in a run of its own."""
    for name in options.precision_variables:
        trial = trials.next(replace(ALL_OFF, without=name), "without a variable that changes precision")
        try:
            seen = trials.observe(trial)
        except NoAnswer:
            continue
        if trials.probe.wrong(seen):
            continue
        if options.expected is None or _near(trials, options, seen):
            return f"{why}; without {name} in the environment it is right, so that is the cause and no operator"
    return f"{why}; no operator can be the cause of that"


def _near(trials: Trials, options: Options, seen: Any) -> bool:
    allowed = options.tolerance if options.tolerance is not None else trials.probe.tolerance(seen).least
    return trials.probe.effect(seen, options.expected) <= allowed


def _reference(trials: Trials, most: float, spread: float) -> float:
    """How far the reference backends are from everything off, beyond what that varies by."""
    for _ in range(FEW):
        trial = trials.next(REFERENCE, "reference backends")
        if trial.problem:
            raise Bad(f"the run of the reference backends gives no answer: {trial.problem}")
        assert trial.effect is not None
        if trial.effect <= most:
            return max(0.0, trial.effect - spread)
    raise Bad(
        f"the reference backends are {trial.effect:.2g} {trials.probe.UNIT} from the run with everything off: "
        "one of the two is wrong, so nothing can be measured against them"
    )
