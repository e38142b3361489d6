"""Runs of the command, each done once and remembered.

    trials.next(ALL_OFF, "baseline")  →  Trial(n=1, key="all off", effect=None, problem="")

A bisection that is gone on with asks for the same runs in the same order, and is given those that are in the journal.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from firstfault.bisect.configuration import Configuration
from firstfault.bisect.journal import RUNS, Began, Journal, Run
from firstfault.bisect.probes.probe import NoAnswer, Output, Probe
from firstfault.bisect.programs.files import STDERR, last_line
from firstfault.errors import FirstFaultError, UnreadableInput
from firstfault.record.plain import plain_number

Variables = Mapping[str, str | None]
"""What is changed in a run's environment; None takes a variable away."""


class OutOfRuns(Exception):
    """As many runs as were allowed have been done."""


class Program(Protocol):
    """What is run: a script, a server with its requests, or a function."""

    @property
    def identity(self) -> str:
        """Equal for programs whose runs mean the same."""

    def run(self, variables: Variables, folder: Path, started: Callable[[int, int], None]) -> Output:
        """Run it once.

        Args:
            variables: what is changed in its environment.
            folder: where to leave what it writes.
            started: to be told its process id and start, where it has a process of its own.

        Raises:
            NoAnswer: it has not come as far as to give an output.
        """

    def output(self, folder: Path, status: int | None) -> Output:
        """The output that an earlier run has left in its folder."""


@dataclass
class Trial:
    """One run.

    Attributes:
        n: its number.
        configuration: what was on.
        why: what it was done for.
        variables: what its environment had.
        effect: how far it is from the baseline, NaN for one without an answer, None for one that makes the baseline.
        problem: why it has no answer.
        folder: what it has left.
        status: its exit status.
    """

    n: int
    configuration: Configuration
    why: str
    variables: Variables
    effect: float | None
    problem: str
    folder: Path
    status: int | None


@dataclass
class Trials:
    """All runs of a bisection.

    Attributes:
        journal: where they are written down.
        program: what is run.
        probe: what is looked at.
        variables: what a configuration changes in the environment.
        records: the variables that make a run write its logs into a folder.
        most: how many runs there may be.
        tell: called with each run that was really done now.
        baseline: observations that effects are measured against, once there are any.
        done: those that have been asked for, in order.
    """

    journal: Journal
    program: Program
    probe: Probe
    variables: Callable[[Configuration], Variables]
    records: Callable[[Path], Variables]
    most: int
    tell: Callable[[Trial], None] = lambda trial: None
    baseline: list[Any] = field(default_factory=list)
    done: list[Trial] = field(default_factory=list)

    def of(self, configuration: Configuration) -> list[Trial]:
        """The runs of a configuration that have been asked for."""
        return [trial for trial in self.done if trial.configuration == configuration]

    def next(self, configuration: Configuration, why: str, *, logged: bool = False) -> Trial:
        """One more run of a configuration, from the journal or done now.

        Args:
            configuration: what is on.
            why: what it is for.
            logged: whether it shall write what it has switched into its folder.

        Raises:
            OutOfRuns: it would be one too many.
        """
        asked = len(self.of(configuration))
        written = [run for run in self.journal.runs if run.key == configuration.key]
        if len(self.done) >= self.most:
            raise OutOfRuns
        if asked < len(written):
            trial = self._known(written[asked], configuration)
        else:
            trial = self._do(configuration, why, logged=logged)
            self.tell(trial)
        self.done.append(trial)
        return trial

    def observe(self, trial: Trial) -> Any:
        """What a run has shown.

        Raises:
            NoAnswer: nothing.
        """
        if trial.problem:
            raise NoAnswer(trial.problem)
        return self._read(self.program.output(trial.folder, trial.status))

    def effect(self, seen: Any) -> float:
        """How far an observation is from the baseline: the median over the baseline's runs."""
        if self.probe.wrong(seen):
            return math.inf
        return statistics.median(self.probe.effect(seen, other) for other in self.baseline)

    def _do(self, configuration: Configuration, why: str, *, logged: bool) -> Trial:
        n = max((run.n for run in self.journal.runs), default=0) + 1
        folder = self.journal.run_folder(n)
        variables = {**self.variables(configuration), **(self.records(folder.absolute()) if logged else {})}
        began = time.monotonic()
        status, problem, effect = None, "", None
        try:
            output = self.program.run(variables, folder, lambda pid, at: self.journal.append(Began(n, pid, at)))
            status = output.status
            seen = self._read(output)
            effect = self.effect(seen) if self.baseline else None
        except NoAnswer as error:
            told = last_line(folder / STDERR)
            problem = f"{error}: {told}" if told else str(error)
            effect = math.nan if self.baseline else None
        seconds = time.monotonic() - began
        shown = None if effect is None or math.isnan(effect) else plain_number(effect)
        run = Run(n, configuration.key, why, dict(variables), status, shown, problem, round(seconds, 3))
        self.journal.append(run)
        return Trial(n, configuration, why, variables, effect, problem, folder, status)

    def _read(self, output: Output) -> Any:
        try:
            return self.probe.read(output)
        except (UnreadableInput, ValueError, KeyError, TypeError, IndexError) as error:
            kind = "" if isinstance(error, FirstFaultError) else f"{type(error).__name__}: "
            raise NoAnswer(f"its output cannot be read ({kind}{error})") from error

    def _known(self, run: Run, configuration: Configuration) -> Trial:
        effect = math.nan if run.problem else None if run.effect is None else float(run.effect)
        folder = self.journal.folder / RUNS / f"{run.n:04d}"
        return Trial(run.n, configuration, run.why, run.variables, effect, run.problem, folder, run.status)
