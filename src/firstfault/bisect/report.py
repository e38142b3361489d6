"""A finished search → the answer.

result(search, verdict, why, facts)  →  Result(conclusion="fused rms_norm makes the difference: …", …)
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstfault.bisect.configuration import ALL_OFF, ALL_ON, Configuration
from firstfault.bisect.judge import ALWAYS, ERROR
from firstfault.bisect.precision import PLUGIN, Found, Precision
from firstfault.bisect.probes import score
from firstfault.bisect.programs.files import placed
from firstfault.bisect.result import Culprit, Effect, Result, Step, Verdict, effect
from firstfault.bisect.trials import Variables
from firstfault.record.plain import plain_number


@dataclass(frozen=True)
class Facts:
    """What the answer shows beside the search.

    Attributes:
        command: the command, without secrets.
        folder: the bisection's folder.
        variables: what a configuration changes in the environment.
    """

    command: Sequence[str]
    folder: str
    variables: Callable[[Configuration], Variables]


def result(search: Precision, verdict: Verdict, why: str, facts: Facts) -> Result:
    """Everything that is told of a bisection."""
    baseline = search.baseline
    culprits = [_culprit(search, found) for found in search.found]
    steps = list(_steps(search, facts))
    return Result(
        verdict=verdict,
        conclusion=_conclusion(search, verdict, why, culprits),
        command=list(facts.command),
        folder=facts.folder,
        probe=search.trials.probe.KIND,
        unit=search.trials.probe.UNIT,
        tolerance=plain_number(baseline.tolerance if baseline else math.nan),
        spread=plain_number(baseline.spread if baseline else math.nan),
        threshold=plain_number(search.judge.threshold),
        test=_test(search),
        runs=len(search.trials.done),
        operators={"fused": list(search.universe.fused), "aten": list(search.universe.aten)},
        culprits=culprits,
        steps=steps,
        notes=list(dict.fromkeys(search.notes)),
        next=list(_next(search, verdict, facts)),
    )


def command_line(command: Sequence[str], variables: Mapping[str, str | None]) -> str:
    """What to type to run a command with variables set and taken away."""
    away = [f"-u {name}" for name, value in sorted(variables.items()) if value is None]
    kept = [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items()) if value is not None]
    before = [*(("env", *away) if away else ()), *kept]
    return " ".join([*before, shlex.join(command)])


def _command(search: Precision, configuration: Configuration, facts: Facts) -> str:
    """What to type to repeat a configuration's first run, in the same folder."""
    folder = next((trial.folder for trial in search.trials.of(configuration)), Path(facts.folder))
    return command_line(placed(facts.command, folder), facts.variables(configuration))


def _conclusion(search: Precision, verdict: Verdict, why: str, culprits: list[Culprit]) -> str:
    told = "; ".join(_blame(search, culprit) for culprit in culprits)
    if verdict is not Verdict.FOUND:
        return f"{verdict.value}: {why}" + (f"; so far {told}" if told else "")
    return f"{verdict.value}: {told}" if len(culprits) == 1 else f"{verdict.value}: {len(culprits)} causes: {told}"


def _blame(search: Precision, culprit: Culprit) -> str:
    """One cause in words, with how much and how often."""
    on, unit = culprit.alone_on, search.trials.probe.UNIT
    much = f"alone on it is {_number(on.mean)} {unit} from the run with everything off"
    often = "" if culprit.seen == culprit.of else f", in {culprit.seen} of {culprit.of} runs"
    names = " and ".join(culprit.operators)
    if not culprit.operators:
        what = "the plugin with both layers off" if culprit.layer == PLUGIN else f"the {culprit.layer} layer"
        return f"{what} makes the difference{often}: {much}; its operators are not known, name them to go on"
    if len(culprit.operators) > 1:
        return f"{names} make the difference, and only together{often}: {much.replace('it is', 'they are')}"
    off = culprit.alone_off
    left = ", and nothing of it is left with that alone off" if off.runs and not off.bad else ""
    return f"{names} makes the difference{often}: {much}{left}"


def _culprit(search: Precision, found: Found) -> Culprit:
    shown = search.shows(found.operators) if found.operators else search.shown(found.alone_on)
    return Culprit(
        [str(operator) for operator in found.operators],
        found.layer,
        _effect(search, found.alone_on),
        _effect(search, found.alone_off),
        sum(shown),
        len(shown),
    )


def _effect(search: Precision, configuration: Configuration) -> Effect:
    return effect(search.effects(configuration), search.shown(configuration))


def _steps(search: Precision, facts: Facts) -> Iterator[Step]:
    """One step a configuration, in the order in which they were first run."""
    for configuration in dict.fromkeys(trial.configuration for trial in search.trials.done):
        trials = search.trials.of(configuration)
        yield Step(
            trials[0].why,
            configuration.key,
            _effect(search, configuration),
            _command(search, configuration, facts),
            list(dict.fromkeys(trial.problem for trial in trials if trial.problem)),
            any(search.shown(configuration)) if configuration != ALL_OFF else None,
        )


def _test(search: Precision) -> str:
    judge, baseline = search.judge, search.baseline
    if baseline is None:
        return "none: the baseline settles it"
    same = (
        "the baseline is the same bit for bit"
        if not judge.false_rate
        else f"one in {1 / judge.false_rate:.0f} by chance"
    )
    return (
        f"a run counts as bad where its effect is beyond {_number(judge.threshold)} ({same}); a configuration by a "
        f"sequential probability ratio test with an error of {ERROR:.0%} each way, for a fault that shows in "
        + ("every run" if judge.fault_rate == ALWAYS else f"{judge.fault_rate:.0%} of runs")
    )


def _next(search: Precision, verdict: Verdict, facts: Facts) -> Iterator[tuple[str, str]]:
    if verdict is Verdict.FOUND and search.found:
        last = search.found[-1]
        yield "see it alone", _command(search, search.found[0].alone_on, facts)
        if last.operators:
            yield "run without it", _command(search, last.alone_off, facts)
    elif verdict is Verdict.NOT_REPRODUCED:
        yield from _not_reproduced(search, facts)
    elif verdict is Verdict.NOTHING_SWITCHED:
        yield "see what keeps the operator backends from being used", "firstfault doctor"
    elif verdict is Verdict.NOISE:
        yield (
            "make runs repeat themselves (a seed, greedy decoding, one request at a time), or allow for more with "
            "--tolerance",
            "",
        )
    elif verdict is Verdict.BASELINE_BAD:
        yield "see it with everything off", _command(search, ALL_OFF, facts)
        yield "look at what all runs share: attention backend, environment, dtype, weights, the harness itself", ""
    elif verdict is Verdict.OUT_OF_RUNS:
        yield f"go on with the same command, --dir {shlex.quote(facts.folder)} and a larger --max-runs", ""


def _not_reproduced(search: Precision, facts: Facts) -> Iterator[tuple[str, str]]:
    """What would tell more: for a score more questions, else a finer probe."""
    first = search.trials.baseline[0]
    if isinstance(first, score.Share) and first.count:
        other = search.options.expected
        apart = abs(other.value - first.value) if isinstance(other, score.Share) else 0.0
        apart = max(apart, 1 / first.count)
        needed = score.enough(first.value, apart)
        yield (
            "measure the score to compare with in this same harness, with everything off, and ask at least "
            f"{needed:,} questions to tell {apart:.1%} from chance",
            "",
        )
    else:
        yield "see it with everything on", _command(search, ALL_ON, facts)
    if search.trials.probe.KIND in ("tokens", "score", "exit"):
        yield "look at log-probabilities, which move before a token or a score does: --probe logprobs:PATH", ""


def _number(value: float | str | None) -> str:
    return f"{value:.2g}" if isinstance(value, (int, float)) else str(value)
