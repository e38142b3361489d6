"""A summary as Markdown, HTML and JSON: nothing of the server's formats, scripts or steers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firstfault.diagnose.serving.comparison import compare
from firstfault.diagnose.serving.handover import path
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem
from firstfault.diagnose.serving.triage import Summary, summarize
from firstfault.present import json as as_json
from firstfault.present import plots, triage_html, triage_markdown, triage_text
from firstfault.read.bundle import read
from tests import triage_cases, triage_signals

EVIL = "</style><script>alert(1)</script><img src=x onerror=alert(2)>`**[a](http://evil)"


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    made = triage_cases.ttft(tmp_path_factory.mktemp("ttft"))
    made.answer("model_info.json", {"model_path": EVIL, "weight_version": EVIL, "model_type": EVIL})
    return summarize(Scene(read(made.folder), EVIL))


def test_a_page_fetches_and_runs_nothing(summary: Summary) -> None:
    page = triage_html.render(summary)
    assert "<script" not in page
    assert "onerror=alert" not in page.replace("onerror=alert(2)&gt;", "")
    assert "default-src 'none'" in page
    assert "&lt;/style&gt;" in page
    assert page.count("<svg") == 4


def test_the_plots_are_the_same_each_time_and_plain(summary: Summary) -> None:
    drawn = plots.latencies(summary)
    assert drawn is not None
    assert drawn == plots.latencies(summary)
    assert drawn.startswith("<svg")
    assert "<script" not in drawn
    assert "p99" in drawn


def test_there_is_no_plot_of_nothing(tmp_path: Path) -> None:
    empty = summarize(Scene(read(triage_signals.gone(tmp_path).folder)))
    assert [plot(empty) for plot in (plots.latencies, plots.queue, plots.usage, plots.stages)] == [None] * 4


def test_markdown_cannot_be_formatted_by_the_server(summary: Summary) -> None:
    told = triage_markdown.render(summary)
    assert told.startswith("**Prefill-side latency (high confidence)")
    assert "| ttft | 3.210 s |" in told
    assert "Next step" not in told
    assert "**next step:** `firstfault triage capture" in told


def test_json_has_a_version_and_the_contract(summary: Summary) -> None:
    told = json.loads(as_json.render(summary))
    assert told["version"] == 1
    assert told["contract"]["problem_class"] == "prefill-side latency"
    assert {"checked", "strongest_signal", "best_guess", "ruled_out", "next_step", "production_risk"} <= told[
        "contract"
    ].keys()


def test_a_comparison_ranks_what_changes_outputs_first(tmp_path: Path) -> None:
    good = Scene(read(triage_signals.before_drift(tmp_path / "good").folder), "good")
    bad = Scene(read(triage_signals.drifted(tmp_path / "bad").folder), "bad")
    found = compare(good, bad)
    assert [change.name for change in found.changes] == ["attention_backend", "version"]
    assert "- configuration: attention_backend: fa3 → triton" in triage_text.render_comparison(found)
    assert compare(good, good).changes == []


def test_a_comparison_measures_what_got_slower(tmp_path: Path) -> None:
    good = Scene(read(triage_signals.healthy(tmp_path / "good").folder), "good")
    bad = Scene(read(triage_cases.ttft(tmp_path / "bad").folder), "bad")
    found = {change.name: change for change in compare(good, bad).changes}
    assert found["avg_ttft_s"].times == pytest.approx(3.21 / 0.08)
    assert compare(good, bad).missing


@pytest.mark.parametrize("problem", list(Problem))
def test_every_class_has_a_path_with_commands(problem: Problem, tmp_path: Path) -> None:
    scene = Scene(read(triage_signals.healthy(tmp_path).folder), "bundle")
    found = path(scene, problem)
    assert found.why
    assert found.steps
    assert all(step.command and step.why for step in found.steps)
    assert triage_text.render_path(found).startswith(f"Problem class: {problem.value}\n")


def test_two_commits_lead_to_a_bisection(tmp_path: Path) -> None:
    scene = Scene(read(triage_signals.healthy(tmp_path).folder), "bundle")
    commands = [step.command for step in path(scene, Problem.PREFILL, good="v1", bad="v2; rm -rf /").steps]
    assert "git bisect start 'v2; rm -rf /' v1" in commands
    assert commands[-1].startswith("git bisect run ")


def test_commands_are_filled_in_and_quoted(tmp_path: Path) -> None:
    made = triage_cases.killed_scheduler(tmp_path).server(launch_command="--model-path '/m/a b' --tp 2")
    commands = [step.command for step in path(Scene(read(made.folder), "my bundle"), Problem.CRASH).steps]
    assert commands[0] == "firstfault triage requests /crash/vm/crash_dump_2026-11-29_11-44-00.pkl"
    assert commands[1] == "firstfault run --level 3 -- python -m sglang.launch_server --model-path '/m/a b' --tp 2"
    assert commands[2].endswith("--base-url http://10.0.0.7:30000")
