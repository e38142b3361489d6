"""The steps from "the numbers are wrong" to the operators that make them so.

    Precision(trials, plugin, options).conclude()  →  Result(verdict=FOUND, culprits=[fused rms_norm], …)

In the order of the plugins' own guide: all off, to know what is right and how much it varies; the reference backends;
all on; fused operators alone, and one by one; ATen operators alone, and by list; both together. What is found is
confirmed alone on and alone off, and while the rest is still wrong without it, the search goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from firstfault.bisect import configuration as configurations
from firstfault.bisect.baseline import Bad, Baseline, measure
from firstfault.bisect.configuration import (
    ALL_OFF,
    ALL_ON,
    ATEN,
    ATEN_ONLY,
    FUSED,
    FUSED_ONLY,
    PLUGIN_ONLY,
    REFERENCE,
    Configuration,
    Operator,
    Universe,
)
from firstfault.bisect.distributions import least_rate, most_rate
from firstfault.bisect.judge import ALWAYS, Judge
from firstfault.bisect.result import Verdict
from firstfault.bisect.search import Inconsistent, minimal_set, reduced
from firstfault.bisect.trials import OutOfRuns, Trial, Trials
from firstfault.errors import ExitCode

MOST_CULPRITS = 8
SURE_RUNS = 4
"""Runs in a row that a set which fails only together must have failed, before it is taken to fail in every run; a fault
of 30 % would show in as many with a probability of 0.8 %."""
BOTH, PLUGIN = "fused and aten", "plugin"


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


@dataclass(frozen=True)
class Found:
    """A smallest set, and the configurations that confirm it."""

    operators: tuple[Operator, ...]
    layer: str
    alone_on: Configuration
    alone_off: Configuration


class Stop(Exception):
    """The verdict is known before any operator is searched for."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict


class Precision:
    """One bisection.

    Attributes:
        trials: the runs.
        universe: the operators, once they are known.
        baseline: what the runs with all off are like, once they are known.
        judge: how a configuration is judged now.
        found: the smallest sets so far.
        decided: whether a configuration is bad, as far as it was asked.
        notes: what a reader should know beside the verdict.
    """

    def __init__(
        self,
        trials: Trials,
        discover: Callable[[Trial], Universe],
        records: Callable[[], Mapping[str, str]],
        options: Options,
    ) -> None:
        """Begin.

        Args:
            trials: the runs.
            discover: the operators that a run has switched, from its logs.
            records: the variables that make a run write those logs.
            options: what the user has said.
        """
        self.trials = trials
        self.options = options
        self.universe = options.universe
        self.baseline: Baseline | None = None
        self.judge = Judge(0.0, 0.0, ALWAYS)
        self.found: list[Found] = []
        self.decided: dict[Configuration, bool] = {}
        self.notes: list[str] = []
        self._discover = discover
        self._records = records
        self._crashes = False
        self._distrust = 0

    def conclude(self) -> tuple[Verdict, str]:
        """The verdict, and why; what was found is in the attributes."""
        try:
            self._begin()
            self._reproduce()
            self._search()
        except Stop as stop:
            return stop.verdict, str(stop)
        except Bad as bad:
            return Verdict.BASELINE_BAD, str(bad)
        except OutOfRuns:
            return Verdict.OUT_OF_RUNS, f"the {self.trials.most} runs that were allowed are done"
        return Verdict.FOUND, ""

    # --- what is right, and whether it is wrong with all on

    def _begin(self) -> None:
        self.baseline = measure(self.trials, self.options)
        self.judge = Judge(self.baseline.threshold, self.baseline.false_rate, self.options.rate)
        if self.baseline.false_rate >= self.options.rate:
            raise Stop(
                Verdict.NOISE,
                f"with everything off {self.baseline.outliers} of {self.baseline.runs} runs go wrong by chance, which "
                f"hides a fault that shows in {self.options.rate:.0%}",
            )

    def _reproduce(self) -> None:
        """Run with all on until it is bad, or has been good often enough."""
        first = self.trials.next(ALL_ON, "all on", extra=self._records())
        self._crashes = bool(first.problem) and first.status != ExitCode.CANNOT_TELL
        self._know(self._discover(first))
        if not self._bad(ALL_ON, "all on"):
            raise self._not_reproduced()
        shown = self.shown(ALL_ON)
        self._raise_threshold(ALL_ON)
        if all(shown):
            self.judge = replace(self.judge, fault_rate=ALWAYS)
        else:
            self._distrust_runs()

    def _know(self, seen: Universe) -> None:
        """The user's lists, and for the layers that have none what a run has switched."""
        self.universe = Universe(self.universe.fused or seen.fused, self.universe.aten or seen.aten)

    def _not_reproduced(self) -> Stop:
        baseline = self.baseline
        assert baseline is not None
        if baseline.spread > baseline.tolerance:
            return Stop(
                Verdict.NOISE,
                f"runs with everything off are up to {baseline.spread:.2g} apart by themselves, which is more than the "
                f"tolerance of {baseline.tolerance:.2g} and would hide a fault",
            )
        if not self.universe.operators:
            self.notes.append("by its logs the run with everything on has switched no operator; see firstfault doctor")
        runs = len(self.effects(ALL_ON))
        largest = max(self.effects(ALL_ON), default=0.0)
        return Stop(
            Verdict.NOT_REPRODUCED,
            f"no operator can be the cause: with everything on {runs} runs are within {largest:.2g} of those with "
            f"everything off, where {self.judge.threshold:.2g} is no difference yet",
        )

    def _raise_threshold(self, whole: Configuration) -> None:
        """Ask for a part of the whole effect from now on, so that rounding elsewhere is not taken for it."""
        assert self.baseline is not None
        effects = [effect for effect in self.effects(whole) if effect > self.baseline.threshold]
        part = self.trials.probe.SHARE * min(effects, default=0.0)
        threshold = max(self.baseline.threshold, part if math.isfinite(part) else 0.0)
        self.judge = replace(self.judge, threshold=threshold)
        self.decided = {whole: True}

    # --- which operators

    def _search(self) -> None:
        left = self.universe.operators
        whole = ALL_ON
        while len(self.found) < MOST_CULPRITS:
            found = self._trusted(left, whole)
            self.found.append(found)
            if not found.operators or not self._bad(found.alone_off, "alone off"):
                return
            left = tuple(operator for operator in left if operator not in found.operators)
            whole = found.alone_off
            if not left:
                self.notes.append("it is still wrong with every operator of the list off that was found")
                return
            self._raise_threshold(whole)
        self.notes.append(f"it is still wrong without these {MOST_CULPRITS}; the search ends here")

    def _trusted(self, left: Collection[Operator], whole: Configuration) -> Found:
        """A smallest set that no run speaks against."""
        while True:
            try:
                found = self._one(left, whole)
                if self._holds(found, whole):
                    return found
            except Inconsistent:
                pass
            self._distrust_runs()

    def _holds(self, found: Found, whole: Configuration) -> bool:
        """Whether the runs so far agree with it; one that fails only together is looked at harder."""
        if self._distrust or not found.operators:
            return True
        if len(found.operators) > 1:
            while len(self.shows(found.operators)) < SURE_RUNS:
                self._run(whole, "all on")
        shows = self.shows(found.operators)
        if not all(shows):
            return False
        if len(found.operators) < 2:
            return True
        self.judge = replace(self.judge, fault_rate=min(ALWAYS, least_rate(len(shows), len(shows))))
        self.decided = {whole: True}
        fails = self._fails(found.layer, "is each needed")
        kept = reduced(found.operators, fails)
        self.judge = replace(self.judge, fault_rate=ALWAYS)
        return len(kept) == len(found.operators)

    def shows(self, operators: Iterable[Operator]) -> list[bool]:
        """Of every run with all of these on, whether it was an outlier."""
        wanted = tuple(operators)
        return [
            self.judge.outlier(effect)
            for effect in (self._effect(trial) for trial in self.trials.done if trial.configuration.has(wanted))
            if effect is not None
        ]

    def _distrust_runs(self) -> None:
        """From now on a run without the fault says little: it takes as many as the lowest rate asks for."""
        self._distrust += 1
        if self._distrust > 2:
            raise Stop(Verdict.NOISE, "the same operators were right in some runs and wrong in others, beyond any rate")
        self.judge = replace(self.judge, fault_rate=self.options.rate / self._distrust)
        self.decided = {}
        self._widen_baseline()

    def _widen_baseline(self) -> None:
        """Run everything off as often as it takes to see a fault of that rate, for it may be there too."""
        while len(self.effects(ALL_OFF)) < self.judge.good_runs:
            self._run(ALL_OFF, "baseline, again")
        shown = self.shown(ALL_OFF)
        if not any(shown):
            return
        rate = most_rate(sum(shown), len(shown))
        if rate >= self.judge.fault_rate:
            raise Stop(
                Verdict.NOISE,
                f"it goes wrong with everything off too, in {sum(shown)} of {len(shown)} runs",
            )
        self.judge = replace(self.judge, false_rate=max(rate, self.judge.false_rate))

    def _one(self, left: Collection[Operator], whole: Configuration) -> Found:
        """A smallest set among these operators: within the layer that is wrong by itself, else over both."""
        layers = ((FUSED, self.universe.fused, FUSED_ONLY), (ATEN, self.universe.aten, ATEN_ONLY))
        for layer, known, only in layers:
            names = [operator for operator in left if operator.layer == layer]
            if names and self._bad(self._configuration(layer, names), f"{layer} only"):
                return self._within(layer, names, left)
            if not known and self._bad(only, f"{layer} only"):
                return Found((), layer, only, ALL_OFF)
        if self._bad(PLUGIN_ONLY, "plugin with both layers off"):
            return Found((), PLUGIN, PLUGIN_ONLY, ALL_OFF)
        return self._within(BOTH, list(left), left)

    def _within(self, layer: str, names: list[Operator], left: Collection[Operator]) -> Found:
        why = {FUSED: "fused, per operator", ATEN: "aten, by list", BOTH: "both layers"}[layer]
        operators = tuple(minimal_set(names, self._fails(layer, why)))
        rest = [operator for operator in left if operator not in operators]
        alone_on = self._configuration(layer, operators)
        return Found(operators, layer, alone_on, configurations.subset(rest, self.universe))

    def _fails(self, layer: str, why: str) -> Callable[[frozenset[Operator]], bool]:
        return lambda chosen: self._bad(self._configuration(layer, chosen), why)

    def _configuration(self, layer: str, operators: Collection[Operator]) -> Configuration:
        """Only these on, the way in which their layer is searched."""
        names = {operator.name for operator in operators}
        if layer == BOTH:
            return configurations.subset(operators, self.universe)
        make = configurations.fused_subset if layer == FUSED else configurations.aten_subset
        if not names:
            return REFERENCE if layer == FUSED else PLUGIN_ONLY
        return make(names, self.universe)

    # --- runs

    def _bad(self, configuration: Configuration, why: str) -> bool:
        """Whether a configuration is bad; run as often as that takes."""
        if configuration not in self.decided:
            while (verdict := self._verdict(configuration)) is None:
                self._run(configuration, why)
            self.decided[configuration] = verdict
        return self.decided[configuration]

    def _verdict(self, configuration: Configuration) -> bool | None:
        verdict = self.judge.verdict(self.effects(configuration))
        silent = [trial.problem for trial in self.trials.of(configuration) if trial.problem]
        if verdict is None and len(silent) > 1 and not self.effects(configuration):
            self.notes.append(f"no answer with {configuration.key}, taken for not bad: {silent[-1]}")
            return False
        return verdict

    def _run(self, configuration: Configuration, why: str) -> None:
        self.trials.next(configuration, why)

    def shown(self, configuration: Configuration) -> list[bool]:
        """Of every run of a configuration that has an effect, whether it was an outlier."""
        return [self.judge.outlier(effect) for effect in self.effects(configuration)]

    def effects(self, configuration: Configuration) -> list[float]:
        """The effects of a configuration's runs."""
        found = (self._effect(trial) for trial in self.trials.of(configuration))
        return [effect for effect in found if effect is not None]

    def _effect(self, trial: Trial) -> float | None:
        """The effect of a run; where the fault is that there is no answer, none counts as infinite."""
        if trial.problem:
            return math.inf if self._crashes and trial.configuration.plugin else None
        return trial.effect
