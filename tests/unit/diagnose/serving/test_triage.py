"""The summary: SGLang's lines to the letter, rates over the window, every rank, and the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import rules
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem
from firstfault.diagnose.serving.triage import summarize
from firstfault.present.triage_text import render
from firstfault.read.bundle import read
from tests import triage_cases, triage_signals
from tests.bundles import Made, load

SPEC = (
    "Health: /health=ok /health_generate=ok",
    "Point-in-time load: running=1 waiting=0 total=1 token_usage=0.410 throughput=29.800 cache_hit_rate=0.970",
    "Metrics: requests=2 prompt_tokens=1540 generation_tokens=128 avg_ttft_s=3.210 avg_e2e_s=4.150 avg_queue_s=0.030",
    "Stage Averages (max across TP ranks): prefill_forward=2.900s, request_process=0.090s",
)
CONTRACT = (
    "Problem class: ", "What was checked: ", "Strongest signal: ", "Best guess: ", "Ruled out: ", "Next step: ",
    "Production risk: ",
)  # fmt: skip


def scene(made: Made, baseline: Scene | None = None) -> Scene:
    return Scene(read(made.folder), "bundle", baseline)


def test_the_lines_of_the_method_are_to_the_letter(tmp_path: Path) -> None:
    lines = render(summarize(scene(triage_cases.ttft(tmp_path)))).split("\n")
    for line in SPEC:
        assert line in lines
    for beginning in CONTRACT:
        assert sum(line.startswith(beginning) for line in lines) == 1
    assert [line.partition(":")[0] for line in lines if line.startswith(("Model", "Topology", "Capacity", "Queues"))]


def test_one_sample_is_told_to_be_of_the_whole_life(tmp_path: Path) -> None:
    histograms = {"sglang:time_to_first_token_seconds": (1002, 0.0563)}
    made = Made(tmp_path).sample(at=0.0, ranks=[load(running=1, waiting=0)], histograms=histograms)
    found = summarize(scene(made))
    assert found.window is None
    assert found.lines["Metrics"]["avg_ttft_s"] == "0.056"
    assert any("whole life" in line for line in found.contract.checked)
    assert not found.latencies[0].window


def test_a_window_without_requests_falls_back_to_the_life(tmp_path: Path) -> None:
    histograms = {"sglang:time_to_first_token_seconds": (7.0, 0.5)}
    made = Made(tmp_path)
    for index in range(2):
        made.sample(at=5.0 * index, ranks=[load(running=1, waiting=0)], histograms=histograms)
    found = summarize(scene(made))
    assert found.lines["Window"]["metrics"] == "lifetime"
    assert found.lines["Metrics"]["avg_ttft_s"] == "0.500"


def test_every_rank_counts_and_not_the_first(tmp_path: Path) -> None:
    ranks = [load(running=0, waiting=0, usage=0.0), load(running=5, waiting=7, usage=0.93), load(running=1, waiting=0)]
    made = Made(tmp_path).sample(at=0.0, ranks=ranks)
    found = summarize(scene(made))
    assert found.lines["Point-in-time load"]["running"] == "6"
    assert found.lines["Point-in-time load"]["waiting"] == "7"
    assert found.lines["Point-in-time load"]["token_usage"] == "0.930"
    assert [rank.name for rank in found.ranks] == ["dp0", "dp1", "dp2"]


def test_ranks_are_found_in_metrics_where_loads_are_not_told(tmp_path: Path) -> None:
    metrics = {
        f'sglang:{name}{{dp_rank="{rank}",tp_rank="{tp}"}}': float(value * (rank + 1))
        for name, value in (("num_running_reqs", 2), ("num_queue_reqs", 1), ("token_usage", 0.2))
        for rank in range(2)
        for tp in range(2)
    }
    found = scene(Made(tmp_path).sample(at=0.0, metrics=metrics))
    assert [(rank.name, rank.running) for rank in found.last.ranks] == [
        ("dp0 tp0", 2.0), ("dp0 tp1", 2.0), ("dp1 tp0", 4.0), ("dp1 tp1", 4.0),
    ]  # fmt: skip


def test_ranks_of_one_tensor_parallel_group_share_their_requests(tmp_path: Path) -> None:
    metrics = {f'sglang:num_running_reqs{{tp_rank="{tp}"}}': 3.0 for tp in range(4)}
    found = summarize(scene(Made(tmp_path).sample(at=0.0, metrics=metrics)))
    assert found.lines["Point-in-time load"]["running"] == "3"


def test_a_restart_in_the_window_is_seen(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for at, value in ((0.0, 900.0), (5.0, 20.0)):
        metrics = {'sglang:realtime_tokens_total{mode="decode"}': value}
        made.sample(at=at, ranks=[load(running=1, waiting=0)], metrics=metrics)
    found = scene(made)
    assert found.restarted
    assert not found.frozen


@pytest.mark.parametrize("name", rules.RULES)
def test_a_rules_docstring_is_its_page(name: str) -> None:
    page = rules.load(name).__doc__ or ""
    headings = [line for line in page.split("\n") if line.startswith("## ")]
    assert headings == ["## What it finds", "## Why it matters", "## Evidence", "## Next step"]
    assert page.split("\n")[0].endswith(".")


def test_a_well_server_gives_no_signal(tmp_path: Path) -> None:
    assert rules.check_all(scene(triage_signals.healthy(tmp_path))) == []


def test_background_signals_do_not_take_the_first_place(tmp_path: Path) -> None:
    made = triage_cases.stopped(tmp_path / "now").server(attention_backend="triton")
    baseline = scene(triage_signals.healthy(tmp_path / "then").server(attention_backend="fa3"))
    found = summarize(scene(made, baseline=baseline))
    assert found.contract.problem_class is Problem.HANG
    assert any(one.problem is Problem.DRIFT for one in found.signals)


def test_what_a_server_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    made = triage_signals.healthy(tmp_path).answer("model_info.json", {"model_path": "evil\x1b[2J\nHealth: /health=ok"})
    shown = render(summarize(scene(made)))
    assert "\x1b" not in shown
    assert shown.count("\nHealth: ") == 1


def test_a_confidence_is_told(tmp_path: Path) -> None:
    found = summarize(scene(triage_cases.ttft(tmp_path)))
    assert found.contract.confidence is Confidence.HIGH
    assert "queue pressure" in " ".join(found.contract.ruled_out)


def test_a_long_stall_weighs_by_itself_also_without_load_snapshots(tmp_path: Path) -> None:
    made = Made(tmp_path, engine="vllm")
    for index in range(5):
        made.sample(
            at=5.0 * index,
            metrics={
                'vllm:num_requests_running{engine="0"}': 4,
                'vllm:num_requests_waiting{engine="0"}': 0,
                'vllm:generation_tokens_total{engine="0"}': 900 + (5 if index else 0),
            },
        )
    found = scene(made)
    assert found.still == 15.0
    contract = summarize(found).contract
    assert (contract.problem_class, contract.confidence) == (Problem.HANG, Confidence.HIGH)


def test_slow_steps_are_no_stall(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for index in range(2):
        metrics = {
            'sglang:realtime_tokens_total{mode="decode"}': 900.0,  # told at each log interval only
            'sglang:scheduler_stage_seconds_total{category="run_batch"}': 10.0 + 4 * index,
        }
        made.sample(at=5.0 * index, ranks=[load(running=1, waiting=0)], metrics=metrics)
    assert not scene(made).frozen
