"""The whole procedure, on programs that run in this process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstfault.bisect.backends.sglang_fl import PLUGIN
from firstfault.bisect.configuration import Universe
from firstfault.bisect.options import Options
from firstfault.bisect.probes.tensors import Tensors
from firstfault.bisect.result import EXIT, Result, Verdict
from firstfault.bisect.run import Asked, bisected
from firstfault.errors import ExitCode, UsageError
from tests.unit.bisect.planted import ATEN, FUSED, Planted

BUDGET = {10: 12, 24: 15}
"""2·log2(n) + 6, of ten fused operators and of 24 ATen operators."""


def bisect(program: Planted, folder: Path, options: Options | None = None, most: int = 1000) -> Result:
    probe = Tensors("{dir}/out.json")
    return bisected(
        Asked(folder, ["x"], program, probe, PLUGIN, {}, {}, options or Options(), most), lambda trial: None
    )


def blamed(found: Result) -> list[set[str]]:
    return [{name.split()[1] for name in one.operators} for one in found.culprits]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FUSED + ATEN), size=st.floats(1e-4, 10))
def test_one_is_found_in_few_runs(tmp_path_factory: pytest.TempPathFactory, name: str, size: float) -> None:
    found = bisect(Planted([{"with": [name], "size": size}]), tmp_path_factory.mktemp("one") / "b")
    assert found.verdict is Verdict.FOUND
    assert blamed(found) == [{name}]
    assert found.runs <= BUDGET[10 if name in FUSED else 24]
    assert found.culprits[0].alone_on.bad == found.culprits[0].alone_on.runs > 0
    assert found.culprits[0].alone_off.bad == 0 < found.culprits[0].alone_off.runs


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.sets(st.sampled_from(FUSED + ATEN), min_size=2, max_size=3))
def test_what_fails_only_together_is_found(tmp_path_factory: pytest.TempPathFactory, names: set[str]) -> None:
    found = bisect(Planted([{"with": sorted(names), "size": 0.1}]), tmp_path_factory.mktemp("few") / "b")
    assert blamed(found) == [names]


def test_two_causes_are_found_one_after_the_other(tmp_path: Path) -> None:
    program = Planted([{"with": ["fused_3"], "size": 0.1}, {"with": ["aten_7"], "size": 0.001}])
    found = bisect(program, tmp_path / "b")
    assert blamed(found) == [{"fused_3"}, {"aten_7"}]
    assert "2 causes" in found.conclusion


@pytest.mark.parametrize("seed", range(6))
def test_a_rare_one_is_found(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    name = chance.choice(FUSED + ATEN)
    found = bisect(Planted([{"with": [name], "size": 0.1, "rate": 0.3}], chance), tmp_path / "b")
    assert blamed(found) == [{name}]
    assert found.culprits[0].seen < found.culprits[0].of
    assert found.culprits[0].alone_on.mean == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_one_in_noise_is_found(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    program = Planted([{"noise": 1e-5}, {"with": ["aten_5"], "size": 1e-3}], chance)
    found = bisect(program, tmp_path / "b")
    assert blamed(found) == [{"aten_5"}]
    assert found.runs < 100


@pytest.mark.parametrize("seed", range(3))
def test_two_that_rarely_fail_together_are_found(tmp_path: Path, seed: int) -> None:
    program = Planted([{"with": ["aten_5", "aten_17"], "size": 0.1, "rate": 0.4}], random.Random(seed))
    assert blamed(bisect(program, tmp_path / "b")) == [{"aten_5", "aten_17"}]


def test_nothing_planted_is_blamed_on_nobody(tmp_path: Path) -> None:
    found = bisect(Planted([]), tmp_path / "b")
    assert found.verdict is Verdict.NOT_REPRODUCED
    assert "no operator can be the cause" in found.conclusion
    assert found.culprits == []
    assert found.runs == 2 + 1 + 13


@pytest.mark.parametrize("named", [Universe(), Universe(FUSED, ATEN)])
def test_it_stops_where_nothing_was_switched(tmp_path: Path, named: Universe) -> None:
    program = Planted([], logs=False)
    found = bisect(program, tmp_path / "b", Options(universe=named))
    assert found.verdict is Verdict.NOTHING_SWITCHED
    assert EXIT[found.verdict] is ExitCode.CANNOT_TELL
    assert "have switched no operator" in found.conclusion
    assert found.runs == program.runs == 2 + 1 + 1
    assert found.next == [("see what keeps the operator backends from being used", "firstfault doctor")]


def test_what_was_switched_without_a_log_is_searched_for(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["aten_3"], "size": 0.1}], logs=False), tmp_path / "b")
    assert found.verdict is Verdict.FOUND
    assert found.culprits[0].layer == "aten"


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_blamed_on_nobody(tmp_path: Path, seed: int) -> None:
    found = bisect(Planted([{"noise": 1e-3}], random.Random(seed)), tmp_path / "b")
    assert found.verdict is Verdict.NOISE
    assert "apart by themselves" in found.conclusion


@pytest.mark.parametrize("seed", range(8))
def test_a_fault_that_happens_with_everything_off_too_is_blamed_on_nobody(tmp_path: Path, seed: int) -> None:
    found = bisect(Planted([{"size": 0.1, "rate": 0.2}], random.Random(seed)), tmp_path / "b")
    assert found.verdict is not Verdict.FOUND
    assert found.culprits == []


def test_rounding_that_adds_up_is_blamed_on_nobody(tmp_path: Path) -> None:
    found = bisect(Planted([], rounding=1e-7), tmp_path / "b")
    assert found.verdict is Verdict.NOISE
    assert "adds up" in found.conclusion
    assert found.culprits == []


def test_one_that_stands_out_of_rounding_that_adds_up_is_found(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["fused_5"], "size": 1e-3}], rounding=1e-7), tmp_path / "b")
    assert blamed(found) == [{"fused_5"}]
    assert "adds up" in found.notes[0]


def test_a_wrong_baseline_is_said(tmp_path: Path) -> None:
    expected = {"values": numpy.arange(2.0, 10.0)}
    found = bisect(Planted([]), tmp_path / "b", Options(expected=expected))
    assert found.verdict is Verdict.BASELINE_BAD
    assert "no operator can be the cause" in found.conclusion


def test_nan_with_everything_off_is_a_wrong_baseline(tmp_path: Path) -> None:
    found = bisect(Planted([{"size": float("nan")}]), tmp_path / "b")
    assert found.verdict is Verdict.BASELINE_BAD
    assert "8 NaN" in found.conclusion
    assert found.runs == 2


def test_nan_is_a_difference_without_measure(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["aten_2"], "size": float("nan")}]), tmp_path / "b")
    assert blamed(found) == [{"aten_2"}]
    assert found.culprits[0].alone_on.mean == "inf"


def test_a_wrong_reference_is_a_wrong_baseline(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["reference"], "size": 0.5}]), tmp_path / "b")
    assert found.verdict is Verdict.BASELINE_BAD
    assert "reference backends" in found.conclusion


def test_the_plugin_itself_is_named_where_both_layers_are_off_and_it_is_wrong(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["plugin"], "unless": ["reference", *FUSED], "size": 0.5}]), tmp_path / "b")
    assert found.verdict is Verdict.NOT_REPRODUCED
    found = bisect(Planted([{"with": ["plugin"], "unless": ["reference"], "size": 0.5}]), tmp_path / "c")
    assert [one.layer for one in found.culprits] in (["plugin"], ["fused"])


def test_a_backend_that_crashes_is_found_as_one_that_is_wrong(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["fused_6"], "crash": True}]), tmp_path / "b")
    assert blamed(found) == [{"fused_6"}]
    assert found.culprits[0].alone_on.mean == "inf"


def test_a_crash_and_wrong_numbers_are_two_causes(tmp_path: Path) -> None:
    program = Planted([{"with": ["fused_6"], "crash": True}, {"with": ["fused_2"], "size": 0.1}])
    assert blamed(bisect(program, tmp_path / "b")) == [{"fused_6"}, {"fused_2"}]


def test_operators_that_a_crash_kept_from_view_are_read_from_the_run_of_their_layer(tmp_path: Path) -> None:
    class Late(Planted):
        """Crashes with an operator on before any of the other layer is called, so that the log has none of those."""

        def run(self, variables: Any, folder: Path, started: Any) -> Any:
            crashes = variables.get("USE_FLAGGEMS") != "0"
            output = super().run(variables, folder, started)
            if crashes and (folder / "dispatch.log").exists():
                (folder / "dispatch.log").unlink()
            return output

    program = Late([{"with": ["fused_6"], "size": 0.1}])
    assert blamed(bisect(program, tmp_path / "b")) == [{"fused_6"}]


def test_an_operator_that_hides_another_does_not_mislead(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["aten_3"], "unless": ["fused_0"], "size": 0.1}]), tmp_path / "b")
    assert found.verdict is Verdict.NOT_REPRODUCED


def test_operators_that_are_named_are_searched_without_logs(tmp_path: Path) -> None:
    program = Planted([{"with": ["fused_1"], "size": 0.1}])
    found = bisect(program, tmp_path / "b", Options(universe=Universe(FUSED[:3], ())))
    assert blamed(found) == [{"fused_1"}]
    assert found.operators["fused"] == list(FUSED[:3])


def test_too_few_runs_are_said(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["aten_2"], "size": 0.1}]), tmp_path / "b", most=6)
    assert found.verdict is Verdict.OUT_OF_RUNS
    assert found.runs == 6
    again = bisect(Planted([{"with": ["aten_2"], "size": 0.1}]), tmp_path / "b")
    assert blamed(again) == [{"aten_2"}]


@pytest.mark.parametrize("after", [0, 1, 3, 7, 9])
def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path, after: int) -> None:
    faults = [{"with": ["aten_9"], "size": 0.1}]
    whole = bisect(Planted(faults), tmp_path / "whole")
    first = Planted(faults, dies=after)
    with pytest.raises(KeyboardInterrupt):
        bisect(first, tmp_path / "b")
    second = Planted(faults)
    found = bisect(second, tmp_path / "b")
    assert first.runs + second.runs == whole.runs == found.runs
    assert blamed(found) == blamed(whole)
    third = Planted(faults)
    assert blamed(bisect(third, tmp_path / "b")) == blamed(whole)
    assert third.runs == 0


def test_a_torn_last_line_is_one_run_that_is_done_again(tmp_path: Path) -> None:
    faults = [{"with": ["aten_9"], "size": 0.1}]
    with pytest.raises(KeyboardInterrupt):
        bisect(Planted(faults, dies=5), tmp_path / "b")
    journal = tmp_path / "b" / "bisect.jsonl"
    journal.write_bytes(journal.read_bytes()[:-30])
    program = Planted(faults)
    assert blamed(bisect(program, tmp_path / "b")) == [{"aten_9"}]


def test_another_bisection_does_not_go_on_with_this_one(tmp_path: Path) -> None:
    bisect(Planted([]), tmp_path / "b")
    with pytest.raises(UsageError, match="another command"):
        bisect(Planted([{"size": 1.0}]), tmp_path / "b")


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError, match="something else"):
        bisect(Planted([]), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_every_step_says_how_to_repeat_it(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["fused_4"], "size": 0.1}]), tmp_path / "b")
    commands = {step.configuration: step.command for step in found.steps}
    assert commands["all off"] == "SGLANG_PLUGINS=__none__ x"
    assert commands["fused fused_4; aten none"] == (
        "SGLANG_FL_PER_OP=fused_4=flagos SGLANG_FL_PREFER=reference USE_FLAGGEMS=0 x"
    )


def keys(found: Result) -> list[Any]:
    return [step.why for step in found.steps]


def test_the_steps_are_in_the_order_of_the_guide(tmp_path: Path) -> None:
    found = bisect(Planted([{"with": ["aten_4"], "size": 0.1}]), tmp_path / "b")
    assert list(dict.fromkeys(keys(found))) == [
        "baseline",
        "reference backends",
        "all on",
        "fused only",
        "aten only",
        "aten, by list",
        "alone off",
    ]
