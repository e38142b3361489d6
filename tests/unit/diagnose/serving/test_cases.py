"""Every case has its class, its next step, and no other case's."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.triage import Summary, summarize
from firstfault.read.bundle import read
from tests.triage_cases import CASES, Case


def summary_of(case: Case, folder: Path) -> Summary:
    bundle = read(case.make(folder / "bundle").folder)
    baseline = Scene(read(case.baseline(folder / "baseline").folder), "good") if case.baseline is not None else None
    return summarize(Scene(bundle, "bundle", baseline, case.client))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_has_its_class_and_next_step(case: Case, tmp_path: Path) -> None:
    found = summary_of(case, tmp_path)
    told = [(one.rule, one.problem.value, one.confidence.value, one.text) for one in found.signals]
    assert found.contract.problem_class is case.problem, told
    assert case.next_has in found.contract.next_step
    assert found.contract.best_guess
    assert found.contract.production_risk
