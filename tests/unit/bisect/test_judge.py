"""Whether a configuration is bad: at once where chance is out, and with the stated error where it is not."""

from __future__ import annotations

import random

import pytest

from firstfault.bisect.judge import ALWAYS, ERROR, Judge


def decided(judge: Judge, chance: random.Random, rate: float) -> bool:
    effects: list[float] = []
    while (verdict := judge.verdict(effects)) is None:
        effects.append(float(chance.random() < rate))
    return verdict


def test_one_run_settles_it_where_a_fault_shows_in_every_run() -> None:
    judge = Judge(0.5, 0.0, ALWAYS)
    assert judge.verdict([]) is None
    assert judge.verdict([1.0]) is True
    assert judge.verdict([0.0]) is False
    assert judge.good_runs == 1


def test_one_run_settles_it_in_noise_too_while_a_fault_shows_in_every_run() -> None:
    judge = Judge(0.5, ERROR, ALWAYS)
    assert judge.verdict([1.0]) is True
    assert judge.verdict([0.0]) is False


def test_a_rare_fault_takes_thirteen_good_runs() -> None:
    judge = Judge(0.5, 0.0, 0.3)
    assert judge.good_runs == 13
    assert judge.verdict([0.0] * 12) is None
    assert judge.verdict([0.0] * 13) is False
    assert judge.verdict([0.0] * 12 + [1.0]) is True


def test_an_outlier_is_proof_however_late_where_chance_is_out() -> None:
    assert Judge(0.5, 0.0, 0.3).verdict([0.0] * 30 + [1.0]) is True
    assert Judge(0.5, 0.01, 0.3).verdict([0.0] * 30 + [1.0]) is False


@pytest.mark.parametrize(("false_rate", "fault_rate"), [(0.0, 0.3), (0.01, 0.3), (0.05, 0.5)])
def test_the_error_is_as_stated(false_rate: float, fault_rate: float) -> None:
    judge, chance, times = Judge(0.5, false_rate, fault_rate), random.Random(1), 4000
    missed = sum(not decided(judge, chance, fault_rate) for _ in range(times))
    blamed = sum(decided(judge, chance, false_rate) for _ in range(times))
    assert missed <= 1.6 * ERROR * times
    assert blamed <= 1.6 * ERROR * times
