"""Fault cases that take seconds: the report has class, culprit, origin and next step right, and asserts none of none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from firstfault.diagnose.finding import Kind
from scenarios import run
from scenarios.run import CASES, COLUMNS, GPU_CASES, Judged, judge, names, table

FAST = ["moe_in_place", "silent_nan", "padded_router", "unrecorded_crash", "skipped_vote", "sliced_rows", "not_close"]


@pytest.mark.parametrize("name", FAST)
def test_the_report_is_right(tmp_path: Path, name: str) -> None:
    judged = judge(name, tmp_path)
    assert judged.all_right, judged


def test_every_case_is_a_program_with_its_truth() -> None:
    for cases in (CASES, GPU_CASES):
        assert {path.stem for path in cases.glob("*.py")} == set(names(cases))
    assert set(FAST) <= set(names())


def test_every_class_of_fault_has_a_case_and_so_have_those_without_a_cause() -> None:
    kinds = [json.loads((CASES / f"{name}.json").read_text())["class"] for name in names()]
    kinds += [json.loads((GPU_CASES / f"{name}.json").read_text())["class"] for name in names(GPU_CASES)]
    assert {kind.value for kind in Kind} - {"not known"} == set(filter(None, kinds))
    assert kinds.count(None) >= 3


def test_a_wrong_answer_is_seen() -> None:
    truth = {"class": "illegal access", "culprit": "align", "origin": "gate", "next": "trace"}
    said = {"kind": "illegal access", "culprit_op": "x.align", "origin_op": "x.gate", "command": "firstfault trace x"}
    assert run._compared("case", truth, said, "align").all_right
    for wrong in ({"kind": "hang"}, {"culprit_op": "gate"}, {"origin_op": ""}, {"command": "firstfault log x"}):
        judged = run._compared("case", truth, said | wrong, "other")
        assert not judged.all_right
        assert not judged.right["last call logged"]
    nothing = {"class": None, "culprit": None, "origin": None, "next": ""}
    assert run._compared("case", nothing, {}, "").all_right
    assert not run._compared("case", nothing, said, "").all_right  # a cause that nobody knows


def test_the_table_counts_what_is_right() -> None:
    right = Judged(names()[0], dict.fromkeys(COLUMNS, True), dict.fromkeys(COLUMNS, ""))
    wrong = Judged(names()[1], dict.fromkeys(COLUMNS, False), dict.fromkeys(COLUMNS, "x"))
    lines = [*table([right, wrong])]
    assert lines[1].split()[1:] == ["right"] * len(COLUMNS)
    assert "culprit: x" in lines[2]
    assert lines[-1].split() == ["1/2"] * len(COLUMNS)


def test_a_case_that_is_not_right_is_kept_with_all_that_was_said_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, kept = tmp_path / "cases", tmp_path / "kept"
    cases.mkdir()
    for name, truth in (("right", None), ("wrong", "hang or divergence of ranks")):
        truths = {"class": truth, "culprit": None, "origin": None, "next": ""}
        (cases / f"{name}.json").write_text(json.dumps(truths))
        (cases / f"{name}.py").write_text("print('seen')")
    monkeypatch.setattr(run, "CASES", cases)
    monkeypatch.setattr(sys, "argv", ["run.py", "--keep", str(kept)])
    assert run.main() == 1
    assert [path.name for path in kept.iterdir()] == ["wrong"]
    of = kept / "wrong"
    assert (of / "printed-1.txt").read_text().startswith("seen")
    assert (of / "recording-1" / "session.json").exists()
    assert json.loads((of / "report.json").read_text())
    assert "Run" in (of / "report.txt").read_text()
