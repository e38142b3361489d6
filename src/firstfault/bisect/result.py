"""What a bisection answers, for people and for machines.

{"version":1,"verdict":"FOUND","culprits":[{"operators":["fused rms_norm"],"alone_on":{…},"alone_off":{…}}],…}
"""

from __future__ import annotations

from enum import Enum

import msgspec

from firstfault.bisect.distributions import mean_interval, rate_interval
from firstfault.errors import ExitCode
from firstfault.record.plain import plain_number
from firstfault.record.schema import Statistic

VERSION = 1


class Verdict(str, Enum):
    """The answer in one word."""

    FOUND = "FOUND"
    NOT_REPRODUCED = "NOT_REPRODUCED"
    BASELINE_BAD = "BASELINE_BAD"
    NOTHING_SWITCHED = "NOTHING_SWITCHED"
    NOISE = "NOISE"
    OUT_OF_RUNS = "OUT_OF_RUNS"


EXIT = {
    Verdict.FOUND: ExitCode.OK,
    Verdict.BASELINE_BAD: ExitCode.BAD,
    Verdict.NOT_REPRODUCED: ExitCode.INCOMPLETE,
    Verdict.OUT_OF_RUNS: ExitCode.INCOMPLETE,
    Verdict.NOTHING_SWITCHED: ExitCode.CANNOT_TELL,
    Verdict.NOISE: ExitCode.CANNOT_TELL,
}
"""0 where something was found, 1 where the run with all off is itself wrong, 3 where there was nothing to find with
this probe or too few runs to, 125 where no operator was switched, or chance is too large to tell."""


class Stop(Exception):
    """The verdict is known before any operator is searched for."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict


class Effect(msgspec.Struct):
    """What the runs of one configuration have shown.

    Attributes:
        runs: how many gave an answer.
        bad: how many of them were beyond the threshold.
        rate: the 95 % interval of how often they are (Clopper and Pearson).
        mean: the mean effect of the bad ones, or of all where none was.
        interval: its 95 % interval (Student's t); of equal runs or one run, from the least to the largest.
    """

    runs: int
    bad: int
    rate: tuple[float, float]
    mean: Statistic | None
    interval: tuple[Statistic, Statistic] | None


class Step(msgspec.Struct):
    """One configuration.

    Attributes:
        why: what it was run for first.
        configuration: what was on.
        effect: what came out.
        command: what to type to repeat it.
        problems: why runs gave no answer.
        bad: whether it counts as bad; None where that was not asked.
    """

    why: str
    configuration: str
    effect: Effect
    command: str
    problems: list[str] = []
    bad: bool | None = None


class Culprit(msgspec.Struct):
    """A smallest set of operators that makes the difference by itself.

    Attributes:
        operators: one, or several that do it only together.
        layer: ``fused``, ``aten``, ``fused and aten``, or ``plugin``.
        alone_on: the run with nothing else on.
        alone_off: the run with everything else on.
        seen: how many of all runs with it on have shown it.
        of: how many such runs there were.
    """

    operators: list[str]
    layer: str
    alone_on: Effect
    alone_off: Effect
    seen: int
    of: int


class Result(msgspec.Struct):
    """The whole answer.

    Attributes:
        conclusion: one sentence.
        command: the command, without secrets.
        probe: the kind of probe.
        unit: what effects are counted in.
        tolerance: up to which effect right implementations may be apart.
        spread: what the baseline's own runs do not exceed, 0 where they are the same bit for bit.
        threshold: the effect beyond which a run counts as bad.
        test: how it was decided, with its error rate.
        runs: how many runs there were.
        next: what to do, as sentence and command.
    """

    verdict: Verdict
    conclusion: str
    command: list[str]
    folder: str
    probe: str
    unit: str
    tolerance: Statistic
    spread: Statistic
    threshold: Statistic
    test: str
    runs: int
    operators: dict[str, list[str]]
    culprits: list[Culprit] = []
    steps: list[Step] = []
    notes: list[str] = []
    next: list[tuple[str, str]] = []
    version: int = VERSION


def effect(effects: list[float], shown: list[bool]) -> Effect:
    """The effects of a configuration's runs, and which of them were beyond the threshold, summed up."""
    if not effects:
        return Effect(0, 0, (0.0, 1.0), None, None)
    bad = [each for each, beyond in zip(effects, shown, strict=True) if beyond]
    counted = bad or effects
    low, high = mean_interval(counted)
    mean = sum(counted) / len(counted)
    rate = rate_interval(len(bad), len(effects))
    return Effect(len(effects), len(bad), rate, plain_number(mean), (plain_number(low), plain_number(high)))
