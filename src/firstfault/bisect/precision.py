"""The steps from "the numbers are wrong" to the operators that make them so.

    Precision(trials, plugin, options).conclude()  →  Result(verdict=FOUND, culprits=[fused rms_norm], …)

In the order of the plugins' own guide: all off, to know what is right and how much it varies; the reference backends;
all on; fused operators alone, and one by one; ATen operators alone, and by list; both together. What is found is
confirmed alone on and alone off, and while the rest is still wrong without it, the search goes on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

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
from firstfault.bisect.options import Options
from firstfault.bisect.result import Stop, Verdict
from firstfault.bisect.search import Inconsistent, minimal_set, reduced
from firstfault.bisect.trials import OutOfRuns, Trial, Trials
from firstfault.errors import ExitCode

MOST_CULPRITS = 8
SURE_RUNS = 4
"""Runs in a row that a set which fails only together must have failed, before it is taken to fail in every run; a fault
of 30 % would show in as many with a probability of 0.8 %."""
ADDED = 0.3
"""Which part of a set's effect is left without any one member, where the members only add up."""
IN_NOISE = 0.9
"""In how many runs a fault of the size of the noise is presumed to show: two outliers, or three runs without, tell."""
BOTH, PLUGIN = "fused and aten", "plugin"


@dataclass(frozen=True)
class Found:
    """A smallest set, and the configurations that confirm it."""

    operators: tuple[Operator, ...]
    layer: str
    alone_on: Configuration
    alone_off: Configuration


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
        discover: Callable[[Path], Universe],
        options: Options,
    ) -> None:
        """Begin.

        Args:
            trials: the runs.
            discover: the operators that a run has switched, from the logs in its folder.
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
        self._crashes = False
        self._switched = False
        self._distrust = 0

    def conclude(self) -> tuple[Verdict, str]:
        """The verdict, and why; what was found is in the attributes."""
        try:
            self._begin()
            self._reproduce()
            self._search()
        except Stop as stop:
            if not self.found:
                return stop.verdict, str(stop)
            self.notes.append(f"with that off it is not clear whether anything is left: {stop}")
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
        first = self._run(ALL_ON, "all on")
        self._crashes = bool(first.problem) and first.status != ExitCode.CANNOT_TELL
        if not first.problem and not any(self.shown(ALL_ON)) and not self._switched:
            raise Stop(
                Verdict.NOTHING_SWITCHED,
                "by the logs of the first run with everything on, the variables have switched no operator, and it is "
                "as those with everything off: there is nothing to search",
            )
        if not self._bad(ALL_ON, "all on"):
            raise self._not_reproduced()
        shown = self.shown(ALL_ON)
        self._raise_threshold(ALL_ON)
        if not all(shown):
            self._distrust_runs()
            return
        if self.judge.false_rate > 0:
            self._widen_baseline()
        self.judge = replace(self.judge, fault_rate=ALWAYS)

    def _know(self, seen: Universe) -> None:
        """The user's lists, and for the layers that have none what runs have switched so far."""
        asked, known = self.options.universe, self.universe
        fused = asked.fused or tuple(dict.fromkeys((*known.fused, *seen.fused)))
        self.universe = Universe(fused, asked.aten or tuple(dict.fromkeys((*known.aten, *seen.aten))))

    def _not_reproduced(self) -> Stop:
        baseline = self.baseline
        assert baseline is not None
        if baseline.spread > baseline.tolerance:
            return Stop(
                Verdict.NOISE,
                f"runs with everything off are up to {baseline.spread:.2g} apart by themselves, which is more than the "
                f"tolerance of {baseline.tolerance:.2g} and would hide a fault",
            )
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
        if not math.isfinite(part):  # only what crashes too is that; of NaN it may be a number that made it
            part = sys.float_info.max if self._crashes else 0.0
        threshold = max(self.baseline.threshold, part)
        self.judge = replace(self.judge, threshold=threshold)
        self.decided = {whole: True}

    # --- which operators

    def _search(self) -> None:
        whole = ALL_ON
        while len(self.found) < MOST_CULPRITS:
            found = self._trusted(whole)
            if self._adds_up(found):
                self._rounding(whole)
                return
            self.found.append(found)
            if not found.operators or not self._left(found.alone_off):
                return
            whole = found.alone_off
            if not self._remaining():
                self.notes.append("it is still wrong with every operator of the list off that was found")
                return
            self._raise_threshold(whole)
        self.notes.append(f"it is still wrong without these {MOST_CULPRITS}; the search ends here")

    def _left(self, without: Configuration) -> bool:
        """Whether anything is wrong with what was found alone off, be it a small part of the whole."""
        assert self.baseline is not None
        presumed = self.judge.fault_rate
        noisy = min(presumed, IN_NOISE) if self.judge.false_rate > 0 else presumed
        self.judge = replace(self.judge, threshold=self.baseline.threshold, fault_rate=noisy)
        self.decided.pop(without, None)
        left = self._bad(without, "alone off")
        self.judge = replace(self.judge, fault_rate=presumed)
        return left

    def _adds_up(self, found: Found) -> bool:
        """Whether a set reaches the threshold only because each of its members adds a little to the others' effect."""
        if len(found.operators) < 2 or not self.trials.probe.SHARE:
            return False
        together = max(self.effects(found.alone_on))
        without = (tuple(other for other in found.operators if other != each) for each in found.operators)
        left = [max(self.effects(self._configuration(found.layer, rest)), default=0.0) for rest in without]
        return math.isfinite(together) and min(left) > ADDED * together

    def _rounding(self, whole: Configuration) -> None:
        """Leave it at what was found: what is left stands out nowhere."""
        much = f"{max(self.effects(whole)):.2g} {self.trials.probe.UNIT}"
        why = f"{much} adds up from many operators, each of which has a little of it, as rounding does"
        if not self.found:
            raise Stop(Verdict.NOISE, f"no operator stands out: {why}; allow for it with --tolerance, if it may be")
        self.notes.append(f"with that off, {why}")

    def _trusted(self, whole: Configuration) -> Found:
        """A smallest set that no run speaks against."""
        while True:
            try:
                found = self._one()
            except Inconsistent:
                self._distrust_runs()
                continue
            if self._distrust:
                if self._each_is_needed(found):
                    return found
            elif self._holds(found, whole):
                return found
            else:
                self._distrust_runs()

    def _each_is_needed(self, found: Found) -> bool:
        """Whether a set of several is good without any one of them, looked at twice as long as for saying so.

        One configuration that was good by chance is enough to take an operator along that has nothing to do with it.
        """
        for each in found.operators if len(found.operators) > 1 else ():
            rest = self._configuration(found.layer, [other for other in found.operators if other != each])
            while len(self.effects(rest)) < 2 * self.judge.good_runs:
                self._run(rest, "is each needed")
            self.decided.pop(rest, None)
            if self._bad(rest, "is each needed"):
                return False
        return True

    def _holds(self, found: Found, whole: Configuration) -> bool:
        """Whether the runs so far agree with it; one that fails only together is looked at harder."""
        if not found.operators:
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

    def _one(self) -> Found:
        """A smallest set among what is left: within the layer that is wrong by itself, else over both."""
        for layer, only in ((FUSED, FUSED_ONLY), (ATEN, ATEN_ONLY)):
            names = self._remaining(layer)
            if not names and _of(layer, self.universe):
                continue
            if self._bad(self._configuration(layer, names) if names else only, f"{layer} only"):
                return self._within(layer, only)
        if self._bad(PLUGIN_ONLY, "plugin with both layers off"):
            return Found((), PLUGIN, PLUGIN_ONLY, ALL_OFF)
        return self._within(BOTH, ALL_ON)

    def _within(self, layer: str, only: Configuration) -> Found:
        """A smallest set of a layer that is wrong; the whole layer where its operators are not known."""
        names = self._remaining(layer)
        if not names:
            return Found((), layer, only, ALL_OFF)
        why = {FUSED: "fused, per operator", ATEN: "aten, by list", BOTH: "both layers"}[layer]
        operators = tuple(minimal_set(names, self._fails(layer, why)))
        rest = [operator for operator in self._remaining() if operator not in operators]
        alone_on = self._configuration(layer, operators)
        return Found(operators, layer, alone_on, configurations.subset(rest, self.universe))

    def _remaining(self, layer: str = BOTH) -> list[Operator]:
        """The operators that are known of a layer, but for those that were found."""
        found = {operator for one in self.found for operator in one.operators}
        return [operator for operator in _of(layer, self.universe) if operator not in found]

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

    def _run(self, configuration: Configuration, why: str) -> Trial:
        """One more run; that of a whole layer says which operators there are, which a crash may have kept from view."""
        first = configuration in (ALL_ON, FUSED_ONLY, ATEN_ONLY) and not self.trials.of(configuration)
        trial = self.trials.next(configuration, why, logged=first)
        if first:
            seen = self._discover(trial.folder)
            self._switched = self._switched or bool(seen.operators)
            self._know(seen)
        return trial

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


def _of(layer: str, universe: Universe) -> list[Operator]:
    return [operator for operator in universe.operators if layer in (BOTH, operator.layer)]
