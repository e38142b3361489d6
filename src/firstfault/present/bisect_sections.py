"""A bisection as a list of sections, for the terminal.

Runs
  what                 on                         runs  bad  effect                 rate of bad
  fused, per operator  fused rms_norm; aten none  1     1    0.0021 (0.0021 … 0.0021)  3 % … 100 %
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from firstfault.bisect.result import Culprit, Effect, Result, Step
from firstfault.present import values
from firstfault.present.sections import LONGEST_LINE, NEXT, Code, Label, Line, Section
from firstfault.record.schema import Statistic

LONGEST_CHOICE = 60
MOST_STEPS = 60


def sections(found: Result) -> Iterator[Section]:
    """Everything below the conclusion."""
    yield _bisected(found)
    if found.culprits:
        yield _culprits(found)
    if found.steps:
        yield _runs(found)
        yield Section("To repeat each", [(f"{at:>3}  ", Code(step.command)) for at, step in _shown(found)])
    if problems := [f"{at}: {problem}" for at, step in _shown(found) for problem in step.problems]:
        yield Section("No answer", [(values.shortened(problem, LONGEST_LINE),) for problem in problems])
    if found.notes:
        yield Section("Notes", [(note,) for note in found.notes])
    if found.next:
        yield Section(NEXT, [(f"{what}: ", Code(command)) if command else (what,) for what, command in found.next])


def _bisected(found: Result) -> Section:
    lines: list[Line] = [(Label("command"), Code(shlex.join(found.command)))]
    lines.append((Label("probe"), f"{found.probe}, in {found.unit}; up to {number(found.tolerance)} is no difference"))
    spread = "the same bit for bit" if found.spread == 0 else f"up to {number(found.spread)} apart"
    lines.append((Label("baseline"), f"with everything off the runs are {spread}"))
    counts = [f"{len(names)} {layer}" for layer, names in found.operators.items() if names]
    lines.append((Label("searched"), " and ".join(counts) + " operators" if counts else "no operator is known"))
    lines.append((Label("test"), found.test))
    lines.append((Label("runs"), f"{found.runs}, kept in ", Code(found.folder)))
    return Section("Bisected", lines)


def _culprits(found: Result) -> Section:
    rows: list[Line] = [
        (Code(_name(one)), _effect(one.alone_on), _effect(one.alone_off), f"{one.seen} of {one.of}")
        for one in found.culprits
    ]
    return Section("Makes the difference", columns=["what", "alone on", "alone off", "seen in runs with it"], rows=rows)


def _name(culprit: Culprit) -> str:
    return " and ".join(culprit.operators) or f"{culprit.layer} (its operators are not known)"


def _runs(found: Result) -> Section:
    rows: list[Line] = []
    for at, step in _shown(found):
        choice = values.shortened(step.configuration, LONGEST_CHOICE)
        effect = step.effect
        rate = " … ".join(f"{100 * bound:.0f} %" for bound in effect.rate) if effect.runs else ""
        rows.append((str(at), step.why, choice, str(effect.runs), str(effect.bad), _effect(effect), rate))
    left = len(found.steps) - len(rows)
    if left:
        rows.append(("", f"{left} more, in --json"))
    return Section(
        "Runs", columns=["", "for", "on", "runs", "bad", f"effect in {found.unit}", "rate of bad"], rows=rows
    )


def _shown(found: Result) -> list[tuple[int, Step]]:
    return list(enumerate(found.steps[:MOST_STEPS], 1))


def _effect(effect: Effect) -> str:
    if effect.mean is None or effect.interval is None:
        return "none known"
    low, high = map(number, effect.interval)
    mean = number(effect.mean)
    return mean if low == high == mean else f"{mean} ({low} … {high})"


def number(value: Statistic | None) -> str:
    """A number with as many digits as matter."""
    return f"{value:.3g}" if isinstance(value, (int, float)) else str(value)
